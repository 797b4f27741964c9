"""Any torch optimizers on one clock: AdamW on the slow part, say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .._torch import add_scaled_, copy_
from ..errors import CheckpointError
from ..optimizer import Langevin
from .clock import Clock, Group, check_covered, is_due
from .optimizer import here


class MultirateWrapper(Clock):
    """Make any torch optimizers multirate.

    An optimizer with ``every=k`` steps every k steps, with k times its rate. With ``drift=True`` the
    displacement Δ of that step is spread linearly over the k steps, Δ/k each; for SGD that is Algorithm 5.1. The
    rate of a cycle is that of its turn.

    >>> opt = MultirateWrapper([
    ...     {"optimizer": torch.optim.SGD(head, lr=1e-3, momentum=0.9)},
    ...     {"optimizer": torch.optim.AdamW(body, lr=1e-5), "every": 5},
    ... ])

    The optimizers keep their groups and their state; schedulers, scalers and checkpoints see this one.

    Args:
        scales: mappings with an ``optimizer``, and optionally ``every`` (1) and ``drift`` (True); an optimizer by
            itself has ``every=1``.
        model: check that the optimizers hold all of its trainable parameters.
    """

    def __init__(self, scales: Iterable[Mapping[str, Any]], *, model: nn.Module | None = None) -> None:
        self.optimizers: list[Optimizer] = []
        super().__init__([dict(scale) if isinstance(scale, Mapping) else {"optimizer": scale} for scale in scales], {})
        check_covered(model, self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add an optimizer: a mapping as the constructor takes them."""
        unknown = set(param_group) - {"optimizer", "every", "drift"}
        base = param_group.get("optimizer")
        if unknown or not isinstance(base, Optimizer):
            raise TypeError(
                "a scale is a dict with an 'optimizer' (built on its parameters) and optionally 'every' and 'drift'; "
                f"got {base!r} and the keys {sorted(param_group)}"
            )
        if isinstance(base, torch.optim.LBFGS):
            raise TypeError("LBFGS takes several gradients a step, and a step of a time scale has one; use another")
        every = param_group.get("every", self.defaults["every"])
        drift = param_group.get("drift", self.defaults["drift"])
        if isinstance(base, Langevin) and every != 1 and drift:
            raise TypeError("a straight line leaves a constraint: use MultirateLangevin, or drift=False")
        if any("lr" not in group for group in base.param_groups):
            raise TypeError(f"{type(base).__name__} has no 'lr' in its groups to multiply by every")
        for group in base.param_groups:
            group["every"], group["drift"] = every, drift
            super().add_param_group(group)
            if drift and every > 1:
                for p in group["params"]:
                    self.state[p] = {"velocity": torch.zeros_like(p.detach())}
        self.optimizers.append(base)

    def _move(self, groups: list[Group]) -> None:
        chosen = {id(group) for group in groups}
        for base in self.optimizers:
            if id(base.param_groups[0]) in chosen:
                if is_due(base.param_groups[0]):
                    self._turn(base)
                else:
                    self._drift(base)

    def _turn(self, base: Optimizer) -> None:
        """The base's step with its rate multiplied by k; drifting parameters go only the first k-th of the way."""
        every, drift = base.param_groups[0]["every"], base.param_groups[0]["drift"]
        moving = [p for group in base.param_groups for p in self._moving(group)]
        before = [p.detach().clone() for p in here(moving)] if drift and every > 1 else []
        with stretched(base, every):
            base.step()
        if before:
            params, velocities = here(moving), here([self.state[p]["velocity"] for p in moving])
            copy_(velocities, params)
            add_scaled_(velocities, before, -1.0)
            for velocity in velocities:
                velocity.div_(every)
            copy_(params, before)
            add_scaled_(params, velocities, 1.0)

    def _drift(self, base: Optimizer) -> None:
        params = [p for group in base.param_groups for p in self._moving(group)]
        add_scaled_(here(params), here([self.state[p]["velocity"] for p in params]), 1.0)

    # ── torch's contract ─────────────────────────────────────────────────────────────────────────

    def _share_groups(self) -> None:
        """The groups seen here are the optimizers' own, so that a scheduler's rate is theirs at once."""
        self.param_groups = [group for base in self.optimizers for group in base.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "optimizers": [base.state_dict() for base in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("optimizers")
        if saved is None or len(saved) != len(self.optimizers):
            found = "no optimizers" if saved is None else f"{len(saved)} optimizer(s)"
            raise CheckpointError(f"the checkpoint holds {found}, this MultirateWrapper {len(self.optimizers)}")
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "optimizers"})
        for base, own in zip(self.optimizers, saved, strict=True):
            base.load_state_dict(own)
        self._share_groups()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "optimizers": self.optimizers}


@contextmanager
def stretched(base: Optimizer, times: int) -> Iterator[None]:
    """Multiply the rates for the duration of one step."""
    rates = [group["lr"] for group in base.param_groups]
    for group in base.param_groups:
        group["lr"] = group["lr"] * times
    try:
        yield
    finally:
        for group, rate in zip(base.param_groups, rates, strict=True):
            group["lr"] = rate
