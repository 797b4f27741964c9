"""What a run was asked to do: its settings, checked, and what tells it from other runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .._numbers import as_whole
from .._random.seeds import checked
from ..constraints import Constraint
from ..ensemble import Loss
from .chains import Chains
from .inputs import Inputs, count, parts
from .inputs import checked as checked_data
from .kernels import Cyclical, Kernel, kernel_named
from .prior import Prior
from .spaces import Spaces
from .store import fingerprint

MOST_DRAWS = 1000  # of a chain, where thin=None
MOST_BYTES = 1 << 30  # of all draws in memory, where thin=None

Init = str | Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True)
class Request:
    """The arguments of :func:`holonom.sampling.sample`; ``keep_weights=False`` keeps the losses alone."""

    model: nn.Module
    loss: Loss
    data: tuple[Inputs, Tensor]
    steps: int
    num_data: float | None = None
    chains: int = 4
    prior: Any = 1.0
    kernel: str | Kernel = "baoab"
    lr: float | None = None
    burn_in: int | None = None
    thin: int | None = None
    batch_size: int | None = None
    init: Init = "prior"
    seed: int | None = None
    out: str | Path | None = None
    progress: bool = True
    constraints: Mapping[Any, Constraint] | None = None
    keep_weights: bool = True

    def check(self) -> None:
        """Raise for numbers that cannot be used."""
        for name in ("chains", "steps", "thin", "batch_size", "burn_in"):
            value, optional = getattr(self, name), name not in ("chains", "steps")
            if optional and value is None:
                continue
            number, least = as_whole(value), 0 if name == "burn_in" else 1
            if number is None or number < least:
                raise ValueError(
                    f"{name} must be a whole number of at least {least}{', or None' * optional}, got {value!r}"
                )
            object.__setattr__(self, name, number)
        if self.seed is not None:
            object.__setattr__(self, "seed", checked(self.seed))
        object.__setattr__(self, "data", checked_data(self.data))
        if self.batch_size is not None and self.batch_size > (most := count(self.data[0])):
            raise ValueError(f"batch_size is {self.batch_size}, but there are {most} examples; None takes all of them")
        for name in ("lr", "num_data"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, (bool, str)) or not hasattr(value, "__float__")):
                raise TypeError(f"{name} must be a number, or None, got {value!r}")
        if not callable(self.loss):
            raise TypeError(f"loss must be a function, such as nn.CrossEntropyLoss() of torch, got {self.loss!r}")
        if self.lr is not None and not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"lr must be positive and finite, or None to be chosen, got {self.lr}")
        if not self.forgotten < self.steps:
            raise ValueError(f"burn_in must be less than steps ({self.steps}), got {self.forgotten}")
        if not (self.examples > 0 and math.isfinite(self.examples)):
            raise ValueError(f"num_data must be positive, got {self.num_data}")

    @property
    def examples(self) -> float:
        return float(count(self.data[0]) if self.num_data is None else self.num_data)

    @property
    def forgotten(self) -> int:
        """The transitions of the burn-in."""
        if self.burn_in is not None:
            return self.burn_in
        kernel = kernel_named(self.kernel)
        cycles = kernel.cycles if isinstance(kernel, Cyclical) else 1
        return math.ceil(self.steps / cycles) if cycles > 1 else self.steps // 2

    def thinning(self, members: Chains) -> int:
        if self.thin is not None:
            return self.thin
        most = MOST_DRAWS
        if self.keep_weights and self.out is None:
            size = sum(p.numel() * max(4, p.element_size()) for p in members.parameters.values())
            most = max(1, min(most, MOST_BYTES // size))
        return max(1, math.ceil((self.steps - self.forgotten) / most))

    def starts(self, prior: Prior, members: Chains) -> list[Mapping[str, Tensor]]:
        """The state of every chain before its first step."""
        own = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}
        seeds = members.seeds.tolist()
        if isinstance(self.init, str):
            if self.init not in ("prior", "model"):
                raise ValueError(f"init must be 'prior', 'model' or a list of state dicts, got {self.init!r}")
            return [prior.draw(own, seed) if self.init == "prior" else own for seed in seeds]
        if isinstance(self.init, Mapping):
            raise ValueError("init is one state dict; give a list with one for each chain, [state] * chains")
        if len(self.init) != len(seeds):
            raise ValueError(f"init has {len(self.init)} state dicts for {len(seeds)} chains; give one for each")
        for i, state in enumerate(self.init):
            if wrong := [name for name, p in own.items() if name not in state or state[name].shape != p.shape]:
                raise ValueError(f"init: state {i} has no {wrong[0]!r} of shape {tuple(own[wrong[0]].shape)}")
        return list(self.init)

    def settings(self, members: Chains, spaces: Spaces, prior: Prior, seed: int, draws: int) -> dict[str, Any]:
        """Everything that decides the draws, as JSON can hold it."""
        constants = [*(p for p in self.model.parameters() if not p.requires_grad), *self.model.buffers()]
        return {
            "model": {name: [list(p.shape[1:]), str(p.dtype)] for name, p in members.parameters.items()},
            "data": fingerprint(*parts(self.data[0]), self.data[1]),
            "loss": getattr(self.loss, "__qualname__", type(self.loss).__name__),
            "num_data": self.examples,
            "chains": self.chains,
            "prior": prior.describe(),
            "steps": self.steps,
            "kernel": repr(kernel_named(self.kernel)),
            "lr": self.lr,
            "burn_in": self.forgotten,
            "thin": self.thinning(members),
            "draws": draws,
            "weights": self.keep_weights,
            "batch_size": self.batch_size,
            "init": self.init if isinstance(self.init, str) else "states",
            "constraints": {name: repr(space) for name, space in spaces.items()},
            "seed": seed,
            "start": fingerprint(*members.parameters.values(), *constants),
        }
