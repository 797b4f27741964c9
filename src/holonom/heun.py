"""Heun's step for overdamped groups: second order, for a second gradient per step (thesis 3.3.2.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .constraints.base import Constraint
from .optimizer import Langevin


class HeunLangevin(Langevin):
    """A :class:`Langevin` whose groups with the word L take the trapezoidal step

        θ* = θ − h∇L(θ) + √(2τh) R,     θ ← θ* − (h/2)(∇L(θ*) − ∇L(θ)),

    the second gradient being taken where all other groups already are after their step. That needs
    a closure, which is called twice: it must clear the gradients, compute the loss and call backward.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        if closure is None:
            raise ValueError(
                "Heun's step needs the gradient at two places: call step(closure) with a function that clears "
                "the gradients, computes the loss, calls backward() and returns the loss"
            )
        with torch.enable_grad():
            loss = closure()
        corrected = [
            (p, p.grad.clone(), group)
            for group, space in zip(self.param_groups, self._spaces, strict=True)
            if group["scheme"] == "L" and type(space) is Constraint
            for p in group["params"]
            if p.grad is not None
        ]
        super().step()
        with torch.enable_grad():
            closure()
        for p, first, group in corrected:
            assert p.grad is not None
            sign = -1.0 if group["maximize"] else 1.0
            p.add_((p.grad - first) * (-0.5 * sign * group["lr"]))
        self._ledger.note(p for p, _, _ in corrected)
        return loss
