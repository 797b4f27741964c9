"""What the authors' published code does in place of c-CoLA-ud at τ = 0, in order to see what it changes.

It is no method of this package: its circles shrink. Two things differ from thesis 4.7.2.4. The rotation of (θ, ξ)
writes the new θ before it computes ξ from it, so that θ² + ξ² is not kept. And the gradient that kicks after the word's
two drifts is that of the weights before them (the word is AOAB).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

State = dict[str, Tensor]


class ShrinkingCircles(Optimizer):
    """A group with a ``radius`` has weights on circles, all others are free. Tensors may be those of an ensemble.

    Args:
        groups: parameters with or without ``radius``.
        lr: the time step h.
        friction: γ.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, friction: float) -> None:
        tensors = [[p if isinstance(p, Tensor) else p[1] for p in group["params"]] for group in groups]
        given = [{"params": own, "radius": g.get("radius")} for own, g in zip(tensors, groups, strict=True)]
        super().__init__(given, {"lr": lr, "friction": friction, "radius": None})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            h, left = group["lr"], math.exp(-group["friction"] * group["lr"])
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if group["radius"] is None:
                    _free(p, p.grad, state, h, left)
                else:
                    _on_circles(p, p.grad, state, h, left, float(group["radius"]))

    @torch.no_grad()
    def smallest_circles(self) -> list[Tensor]:
        """For each group with a radius, (R,): the smallest (θ² + ξ²)/r² of a replica's weights; 1 before any step."""
        found = []
        for group in self.param_groups:
            if group["radius"] is None:
                continue
            shares = [
                (p.square() + self.state[p]["slack"].square()).flatten(1).amin(1) / group["radius"] ** 2
                if "slack" in self.state[p]
                else torch.ones(len(p), device=p.device)
                for p in group["params"]
            ]
            found.append(torch.stack(shares).amin(0))
        return found


def _free(q: Tensor, gradient: Tensor, state: State, h: float, left: float) -> None:
    """A(½) O A(½) B; momenta start at the first gradient, less half a kick."""
    if not state:
        state["momentum"] = (1 - h / 2) * gradient
    p = state["momentum"]
    q.add_(p, alpha=h / 2)
    p.mul_(left)
    q.add_(p, alpha=h / 2)
    p.sub_(gradient, alpha=h)


def _on_circles(q: Tensor, gradient: Tensor, state: State, h: float, left: float, r: float) -> None:
    if not state:
        _start(q, gradient, state, h, r)
    xi, p, p_xi = state["slack"], state["momentum"], state["slack_momentum"]
    _rotate(q, xi, p, p_xi, h / 2, r)
    p.mul_(left)
    p_xi.mul_(left)
    normal = (q * p + xi * p_xi) / r**2
    p.sub_(normal * q)
    p_xi.sub_(normal * xi)
    _rotate(q, xi, p, p_xi, h / 2, r)
    _kick(q, xi, p, p_xi, gradient, h, r)


def _start(q: Tensor, gradient: Tensor, state: State, h: float, r: float) -> None:
    """Slack variables on the circle; both momenta at the gradient, projected one after the other, less half a kick."""
    xi = (r**2 - q.square()).abs().sqrt()
    p, p_xi = gradient.clone(), gradient.clone()
    p.sub_(q * (q * p + xi * p_xi) / r**2)
    p_xi.sub_(xi * (q * p + xi * p_xi) / r**2)
    _kick(q, xi, p, p_xi, gradient, h / 2, r)
    state.update(slack=xi, momentum=p, slack_momentum=p_xi)


def _rotate(q: Tensor, xi: Tensor, p: Tensor, p_xi: Tensor, time: float, r: float) -> None:
    speed = (xi * p - q * p_xi) / r**2
    cos, sin = (speed * time).cos(), (speed * time).sin()
    p.copy_(speed * (xi * cos - q * sin))
    p_xi.copy_(-speed * (q * cos + xi * sin))
    q.copy_(q * cos + xi * sin)
    xi.copy_(xi * cos - q * sin)  # q is the new one here; the old one would keep the circle


def _kick(q: Tensor, xi: Tensor, p: Tensor, p_xi: Tensor, gradient: Tensor, h: float, r: float) -> None:
    p.sub_(gradient * (1 - q.square() / r**2), alpha=h)
    p_xi.add_(gradient * q * xi / r**2, alpha=h)
