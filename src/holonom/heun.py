"""Heun's step for overdamped groups: second order, for a second gradient per step (thesis 3.3.2.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._step.finite import any_non_finite
from ._step.integrate import over
from ._step.letters import plain
from .constraints import Free
from .errors import NonFiniteGradientError
from .optimizer import Langevin


class HeunLangevin(Langevin):
    r"""A :class:`Langevin` whose groups with the word L take the trapezoidal step

    .. math:: θ^* = θ - h∇L(θ) + \sqrt{2τh}\,R, \qquad θ ← θ^* - \tfrac{h}{2}\,(∇L(θ^*) - ∇L(θ)),

    the second gradient being taken where all other groups already are after their step. That needs
    a closure, which is called twice: it must clear the gradients, compute the loss and call backward.
    Groups of other words, and groups with a constraint, take the step of :class:`Langevin`.
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
            (p, p.grad.clone(), p.detach().clone(), group)
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None and group["scheme"] == "L" and isinstance(self._spaces[p], Free)
        ]
        super().step()
        with torch.enable_grad():
            closure()
        if any(p.grad is None for p, *_ in corrected):
            raise RuntimeError(
                "a parameter had a gradient in the first call of Heun's closure and none in the second: the step was "
                "taken without its correction. Let the closure compute the same loss in both calls"
            )
        bad = self._bad_gradients(corrected) if self.guard_gradients and corrected else None
        for p, first, before, group in corrected:
            change = (p.grad - first) * (-1.0 if group["maximize"] else 1.0)
            change += over(plain(group["weight_decay"]), p) * (p.detach() - before)
            change *= over(plain(group["lr"]), p) / 2
            p.sub_(change if bad is None else torch.where(bad.to(p.device), 0.0, change))
        self._note(p for p, *_ in corrected)
        return loss

    def _bad_gradients(self, corrected: list[tuple[Tensor, Tensor, Tensor, dict[str, Any]]]) -> Tensor | None:
        """Raise for NaN or infinity in the second gradient on a CPU; on a device, whether to skip the correction."""
        found = [g for p, first, *_ in corrected for g in (p.grad, first) if g is not None]
        bad = any_non_finite(found)
        if bad.device.type != "cpu":
            return bad
        if bool(bad):
            raise NonFiniteGradientError(
                "the second gradient of Heun's step is NaN or infinite: the step was taken without its correction. "
                "Lower lr, or clip gradients (torch.nn.utils.clip_grad_norm_)"
            )
        return None
