"""Multirate regularisation: random subsets of the weights rest at zero, then catch up (thesis 5.5.1)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .._random import mix, seeds
from .._step.hyper import check_seed
from .._step.keys import check_keys
from .._torch import add_scaled_, copy_
from .clock import Group, check_number
from .due import DueOptimizer
from .optimizer import kick_


class RandomSubsets(DueOptimizer):
    r"""SGD that switches a random subset of the weights off for k steps, then lets it catch up.

    A cycle: every entry of a weight is chosen with the group's ``probability`` p. For k = ``steps_off``
    steps the chosen entries θ_S are zero in the model and the others are trained as usual,

    .. math:: θ_F ← θ_F - h∇_F L(θ_F, 0).

    Then θ_S is switched on again, as it was, and one step moves everything, θ_S with the step of the
    time it missed:

    .. math:: θ_F ← θ_F - h∇_F L(θ_F, θ_S), \qquad θ_S ← θ_S - hk∇_S L(θ_F, θ_S).

    Weights are switched off inside ``due()`` only: a model evaluated, saved or averaged outside has all
    of its weights. Subsets are keyed by (seed, cycle, parameter): a resumed run draws the same ones.

    >>> opt = RandomSubsets([{"params": [first.weight], "probability": 0.8},
    ...                      {"params": [second.weight], "probability": 0.5},
    ...                      {"params": biases, "probability": 0.0}], lr=0.1, steps_off=5)

    Args:
        params: parameters or groups; every option may be set per group.
        lr: h.
        probability: of an entry to be switched off.
        steps_off: k.
        catch_up: whether the step that moves everything is taken; without it, and with k = 1, another
            subset is zero at every step (the ablation of Fig. 5.7).
        momentum: μ; an entry that is off keeps its momentum.
        weight_decay: ω, as in ``torch.optim.SGD``.
        seed: of the subsets; ``ensemble.seeds`` gives every replica those it would have alone. None draws a number from
            torch's CPU generator, once, which a checkpoint replaces; a seed that was given stays.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        probability: float = 0.5,
        steps_off: int = 5,
        *,
        catch_up: bool = True,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        seed: int | Tensor | None = None,
    ) -> None:
        if seed is None:
            seeds.refuse_ranks("RandomSubsets")
        self._subsets: dict[int, tuple[tuple[int, ...], list[Tensor]]] = {}
        defaults = {
            "lr": lr, "probability": probability, "steps_off": steps_off, "catch_up": catch_up, "momentum": momentum,
            "weight_decay": weight_decay, "seed": as_numbers(seed),
        }  # fmt: skip
        super().__init__(params, seeds.with_seed(defaults))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            param_group = seeds.noted(param_group)
            if "seed" in param_group:
                param_group["seed"] = as_numbers(param_group["seed"])
            check_keys(param_group, self.defaults, self.param_groups)
            check_group({**self.defaults, **param_group})
        number = len(self.param_groups)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group["clock"] = self.param_groups[0]["clock"] if number else 0
        for p in group["params"]:
            self.state[p] = {"momentum": torch.zeros_like(p.detach())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a checkpoint; a seed that was given here stays, with a warning if the checkpoint's differs."""
        before = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        if warning := seeds.keep_given(self.param_groups, before, self.defaults):
            warnings.warn(warning, stacklevel=2)

    @torch.no_grad()
    def upcoming(self) -> Hashable:
        """Which groups catch up; the cycle's subsets are drawn."""
        for number, group in enumerate(self.param_groups):
            if group["probability"]:
                self._on(number, group)
        return tuple(catches_up(group) for group in self.param_groups)

    @contextmanager
    def _prepare(self) -> Iterator[None]:
        """Zeros where weights are off, and afterwards what was there."""
        hidden: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            for number, group in enumerate(self.param_groups):
                if group["probability"] and not catches_up(group):
                    hidden += [(p, p.detach().clone()) for p in group["params"]]
                    for p, on in zip(group["params"], self._on(number, group), strict=True):
                        p.mul_(on)
        try:
            yield
        finally:
            if hidden:
                with torch.no_grad():
                    copy_([p for p, _ in hidden], [value for _, value in hidden])

    def _on(self, number: int, group: Group) -> list[Tensor]:
        """This cycle's weights that stay on, as ones among zeros, in the same tensors for every cycle.

        Kept for the cycle; a resumed run draws them anew.
        """
        key = (group["seed"], group["clock"] // cycle(group), len(group["params"]))
        if number not in self._subsets or self._subsets[number][0] != key:
            first = sum(len(other["params"]) for other in self.param_groups[:number])
            drawn = [
                subset(p, 1 - group["probability"], *key[:2], first + offset)
                for offset, p in enumerate(group["params"])
            ]
            kept = self._subsets.get(number, (key, []))[1]
            if kinds(kept) == kinds(drawn):
                copy_(kept, drawn)
                drawn = kept
            self._subsets[number] = (key, drawn)
        return self._subsets[number][1]

    def _advance(self, closure: Callable[[], Any] | None) -> None:
        for number, group in enumerate(self.param_groups):
            where = [i for i, p in enumerate(group["params"]) if p.grad is not None]
            if where:
                on = self._on(number, group) if group["probability"] else []
                self._move(group, [group["params"][i] for i in where], [on[i] for i in where] if on else [])
            group["clock"] += 1

    def _move(self, group: Group, params: list[Tensor], on: list[Tensor]) -> None:
        momenta, lr, steps = [self.state[p]["momentum"] for p in params], group["lr"], group["steps_off"]
        if not on:
            kick_(momenta, group, params)
            add_scaled_(params, momenta, -lr)
        elif catches_up(group):
            kick_(momenta, group, params)
            moves = [momentum * (steps - (steps - 1) * x) for momentum, x in zip(momenta, on, strict=True)]
            add_scaled_(params, moves, -lr)
        else:
            kicked = [momentum.clone() for momentum in momenta]
            kick_(kicked, group, params)
            for momentum, new, x in zip(momenta, kicked, on, strict=True):
                momentum.lerp_(new, x)  # what is off keeps its momentum
            add_scaled_(params, [momentum * x for momentum, x in zip(momenta, on, strict=True)], -lr)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._subsets = {}


def cycle(group: Group) -> int:
    return int(group["steps_off"]) + bool(group["catch_up"])


def catches_up(group: Group) -> bool:
    """Whether this is the step that moves everything."""
    return bool(group["catch_up"]) and group["clock"] % cycle(group) == group["steps_off"]


def kinds(tensors: list[Tensor]) -> list[tuple[Any, ...]]:
    return [(x.shape, x.dtype, x.device) for x in tensors]


def as_numbers(seed: Any) -> int | tuple[int, ...] | None:
    """As they are written into checkpoints."""
    if seed is None or isinstance(seed, tuple):
        return seed
    check_seed(seed)
    return tuple(seed.tolist()) if isinstance(seed, Tensor) and seed.ndim else seeds.checked(seed)


def bernoulli(like: Tensor, probability: float, *key: int) -> Tensor:
    """1 with the given probability, else 0; depends on the key alone."""
    generator = torch.Generator(like.device)
    generator.manual_seed(mix(*key))
    return torch.empty_like(like.detach()).bernoulli_(probability, generator=generator)


def subset(like: Tensor, probability: float, seed: int | tuple[int, ...], *key: int) -> Tensor:
    """What stays on; with several seeds every replica, in front, draws by its own."""
    if isinstance(seed, int):
        return bernoulli(like, probability, seed, *key)
    if like.shape[:1] != (len(seed),):
        raise ValueError(
            f"{len(seed)} seeds, but a parameter of shape {tuple(like.shape)}: give ensemble.seeds with the ensemble's "
            f"parameters, whose replicas are in front"
        )
    return torch.stack([bernoulli(x, probability, own, *key) for x, own in zip(like, seed, strict=True)])


def check_group(group: Group) -> None:
    for name in ("lr", "momentum", "weight_decay"):
        check_number(name, group[name])
    if not 0 <= group["probability"] < 1:
        raise ValueError(f"probability (of a weight to be off) must lie in [0, 1), got {group['probability']}")
    steps = group["steps_off"]
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps_off must be a whole number of steps, at least 1; got {steps!r}")
