"""The composite two-rate network: a fast and a slow copy, merged every k steps (thesis 5.9.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._step.keys import check_keys
from .._torch import add_scaled_, copy_
from .clock import check_number, check_period
from .optimizer import kick_


class Composite(Optimizer):
    r"""Two copies of a network, trained with steps h_F = ``lr`` and h_S = k·``lr``, averaged every k steps.

    At the start of a cycle both copies are θ. The slow one makes a single step with the gradient there,

    .. math:: p_S ← μ p_S + ∇L(θ), \qquad θ_S = θ - k \cdot \mathrm{lr} \cdot p_S,

    the fast one k steps of SGD with momentum; then θ ← (θ_F + θ_S)/2. Because the copies start at the same
    place, the slow gradient is the fast copy's first: a cycle costs k gradients, as SGD does. Between
    merges the model holds the fast copy, so evaluate after a multiple of k steps. Defaults of Fig. 5.1:
    lr = 0.004, every = 25.

    Args:
        params: parameters or groups; every option may be set per group.
        lr: h_F.
        every: k.
        momentum: μ, of both copies; each has its own.
        weight_decay: ω, as in ``torch.optim.SGD``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 0.004,
        every: int = 25,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "every": every, "momentum": momentum, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            check_keys(param_group, self.defaults, self.param_groups)
            group = {**self.defaults, **param_group}
            check_period(group["every"], [])
            for name in ("lr", "momentum", "weight_decay"):
                check_number(name, group[name])
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group["clock"] = 0
        for p in group["params"]:
            now = p.detach()
            self.state[p] = {
                "momentum": torch.zeros_like(now), "slow_momentum": torch.zeros_like(now), "slow": now.clone(),
            }  # fmt: skip

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One fast step; the first of a cycle also moves the slow copy, the last merges the two."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._advance(group)
            group["clock"] += 1
        return loss

    def _advance(self, group: dict[str, Any]) -> None:
        everyone = group["params"]
        moving = [p for p in everyone if p.grad is not None]
        at, every = group["clock"] % group["every"], group["every"]
        if at == 0:
            copy_(self._all("slow", everyone), everyone)
            self._kick_and_drift("slow_momentum", group, moving, self._all("slow", moving), every)
        self._kick_and_drift("momentum", group, moving, moving, 1)
        if at == every - 1:
            for p, slow in zip(everyone, self._all("slow", everyone), strict=True):
                p.lerp_(slow, 0.5)

    def _kick_and_drift(
        self, name: str, group: dict[str, Any], params: list[Tensor], copy: list[Tensor], steps: int
    ) -> None:
        if params:
            momenta = self._all(name, params)
            kick_(momenta, group, params)
            add_scaled_(copy, momenta, -steps * group["lr"])

    def _all(self, name: str, params: list[Tensor]) -> list[Tensor]:
        return [self.state[p][name] for p in params]
