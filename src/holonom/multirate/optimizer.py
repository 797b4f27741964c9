"""Multirate SGD with momentum: thesis Algorithms 5.1 (linear drift), 5.2 (no drift) and 5.3 (weight decay)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .._sharding.shards import local
from .._sharding.work import local_gradient
from .._step.keys import check_keys
from .._step.letters import plain
from .._torch import add_scaled_, scale_
from .clock import Clock, Group, check_covered, check_number, is_due


class Multirate(Clock):
    r"""SGD with momentum on several time scales.

    A group with ``every=k`` takes its gradient at steps 0, k, 2k, …, where

    .. math:: p ← μp + ∇L(θ) + ωθ \qquad \text{(Algorithm 5.3)}

    and moves at every step by θ ← θ − lr·p (linear drift, Algorithm 5.1), or once, at its turn, by
    θ ← θ − k·lr·p (``drift=False``, Algorithm 5.2). ``lr`` is thus the fast step h/k, and a slow group
    travels k·lr·p = h·p between two gradients. A group's own ``lr`` divided by k gives slow parameters
    the fast stepsize instead (Table 5.2). Periods divide each other: 1, 5 or 1, 2, 6, ….

    >>> opt = Multirate([{"params": head, "every": 1}, {"params": body, "every": 5}], lr=1e-3)
    >>> for x, y in loader:
    ...     with opt.due():                  # only what is due this step is differentiated
    ...         loss_fn(model(x), y).backward()
    ...     opt.step()

    Without drift, Algorithm 5.2 takes the fast gradient where the slow part has just moved to: a
    second gradient, at slow steps only. ``step(closure)`` does that, calling the closure once more for
    every scale that leaps. One backward pass a step takes both gradients at the same place.

    Args:
        params: parameter groups with the option ``every`` (1 by default); every option may be set per group.
        lr: the fast step h/k.
        momentum: μ.
        weight_decay: ω, added to the gradient as in ``torch.optim.SGD``: at a group's turn only.
        drift: move at every step instead of once a turn.
        model: check that the groups hold all of its trainable parameters.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        drift: bool = True,
        *,
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "drift": drift})
        check_covered(model, self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            check_keys(param_group, self.defaults, self.param_groups)
            for name in ("lr", "momentum", "weight_decay"):
                check_number(name, param_group.get(name, self.defaults[name]))
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            self.state[p] = {"momentum": torch.zeros_like(p.detach())}

    def upcoming(self) -> Hashable:
        """Which groups are due, and which parameters of the others rest."""
        return tuple(True if is_due(group) else tuple(group["resting"]) for group in self.param_groups)

    def _move(self, groups: list[Group]) -> None:
        for group in groups:
            params = self._moving(group)
            if not params:
                continue
            momenta = [self.state[p]["momentum"] for p in params]
            if is_due(group):
                kick_(momenta, group, params)
            steps = 1 if group["drift"] else group["every"]
            add_scaled_(here(params), here(momenta), -steps * plain(group["lr"]))


def kick_(momenta: list[Tensor], group: Group, params: list[Tensor]) -> None:
    """p ← μp + (∇L + ωθ), rounded as torch.optim.SGD rounds it."""
    gradients = [local_gradient(p, p.grad, "a parameter") for p in params if p.grad is not None]
    if group["weight_decay"]:
        gradients = [g.add(p, alpha=group["weight_decay"]) for g, p in zip(gradients, here(params), strict=True)]
    scale_(here(momenta), group["momentum"])
    add_scaled_(here(momenta), gradients, 1.0)


def here(tensors: list[Tensor]) -> list[Tensor]:
    """What this rank has of them: one call of torch takes no DTensors beside plain tensors."""
    return list(map(local, tensors))
