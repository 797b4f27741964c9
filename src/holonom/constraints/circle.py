"""Circle: every weight on its own circle, θ² + ξ² = r², so that |θ| ≤ r (paper eq. 2)."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from .._step.integrate import Phase, Scalar, add_scaled_
from ..errors import ConstraintError
from .base import Constraint, Landing, Traits, check_radius, describe, inset, widened

TURN = 2 * math.pi


class Circle(Constraint):
    r"""Bound every weight by |θ| ≤ r, through a slack variable ξ with θ² + ξ² = r² (paper eq. 2, thesis 4.7.2.3–4).

    A point of the circle is an angle: θ = r sin φ, ξ = r cos φ. The state holds φ/2π (``turns``) and the
    momentum along the circle, v = r dφ/dt. So the constraint and cotangency hold identically:

    - B:  v ← v − h cos φ ∂L/∂θ
    - O:  v ← exp(−γh) v + √(τ(1 − exp(−2γh))) R
    - A:  φ ← φ + h v/r, the exact rotation
    - L:  φ ← atan2(θ − h ∂L/∂θ + √(2τh) R_θ, ξ + √(2τh) R_ξ), the radial projection (4.47)

    Where the loss is flat the angle is uniformly distributed, and θ follows the arcsine law on (−r, r). That is the
    prior that the slack variable implies.

    Args:
        radius: r, a float or a tensor that broadcasts to the parameter. For an ensemble, a tensor of shape (R, 1, …)
            has one radius for each replica.
        margin: at |θ| = r a weight feels no force, because the tangent of the circle has no part along θ. So weights
            that start at or beyond r are moved to r(1 − margin).
    """

    slots = ("turns",)
    has_virial = True
    is_bound = True
    _of_replicas = False

    def __init__(self, radius: Scalar, margin: float = 1e-3) -> None:
        check_radius(radius, "Circle")
        if not 0 < margin < 1:
            raise ConstraintError(f"Circle: margin must lie between 0 and 1, got {margin}")
        self.radius = radius if isinstance(radius, Tensor) else float(radius)
        self.margin = margin
        self.traits = Traits(elementwise=not isinstance(radius, Tensor))

    def __repr__(self) -> str:
        return f"Circle(radius={describe(self.radius)}, margin={self.margin!r})"

    def kernel_key(self) -> Hashable:
        return (Circle, self.margin) if type(self) is Circle else repr(self)  # the radius is an input of kernels

    def view(self, q: Tensor) -> Tensor:
        return q

    def over_replicas(self, dims: int) -> Circle:
        if self._of_replicas == (dims > 0):
            return self
        new = copy.copy(self)
        new._of_replicas = dims > 0
        return new

    def check(self, q: Tensor, name: str) -> None:
        if isinstance(self.radius, Tensor):
            count = len(self.radius) if self.radius.ndim == 1 else 1
            if self._of_replicas and q.ndim > 1 and count > 1 and q.shape[0] == count == q.shape[-1]:
                ones = (1,) * (q.ndim - 1)
                raise ConstraintError(
                    f"Circle on {name} of shape {tuple(q.shape)}: {count} radii may be those of replicas or of the "
                    f"last dimension; say which by their shape, {(count, *ones)} or {(*ones, count)}"
                )
            try:
                torch.broadcast_to(self.radius, q.shape)
            except RuntimeError:
                raise ConstraintError(
                    f"Circle on {name}: a radius of shape {tuple(self.radius.shape)} does not broadcast "
                    f"to the parameter's {tuple(q.shape)}"
                ) from None

    def radius_of(self, q: Tensor, sizes: Tensor | None = None) -> Scalar:
        return self.radius.to(q) if isinstance(self.radius, Tensor) else self.radius

    def reach(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (1,) * len(shape)

    def on_shard(self, shape: Sequence[int], first: Sequence[int], local: Sequence[int]) -> Circle:
        if not isinstance(self.radius, Tensor) or not self.radius.ndim:
            return self
        other = copy.copy(self)
        own = tuple(slice(start, start + size) for start, size in zip(first, local, strict=True))
        other.radius = torch.broadcast_to(self.radius, tuple(shape))[own]
        return other

    def land_(self, q: Tensor, name: str) -> Landing:
        # As lift() will see it: a ratio that rounds to 1 is at the rim.
        exact = widened(q)
        ratio = (exact / self.radius_of(exact)).abs()
        outside = ratio >= 1 - 4 * torch.finfo(ratio.dtype).eps
        landed = torch.where(outside, torch.sign(q) * (self.radius_of(q) * (1 - inset(self.margin, q.dtype))), q)
        distance = (landed - q).abs().max().item() if q.numel() else 0.0
        q.copy_(landed)
        return Landing(int(outside.sum()), q.numel(), distance)

    def lift(self, q: Tensor) -> tuple[Tensor, ...]:
        return (torch.asin(q / self.radius_of(q)) / TURN,)

    def adopt_(self, x: Phase, precision: torch.dtype) -> None:
        r"""Set the angle from the weight where they differ.

        With s = r sin 2πφ, ε the rounding (``finfo.eps``) of the state and, where the parameter's precision is lower,
        ε' and t' the rounding and the smallest normal number of that, they differ unless

            |θ − s| ≤ 4εr          or          |θ − s| ≤ 4εr + ε'(|s| + t'),

        so NaN differs. The angle becomes φ = asin(θ/r)/2π on the half of the circle it was on, that is ±½ − φ where
        |φ| was above ¼: the slack variable keeps its sign and the weight its direction. Where |θ/r| ≥ 1 − 4ε, θ/r is
        ±(1 − margin) instead. The momentum is a coordinate along the circle and stays.
        """
        differs = ~self._agreement(x, precision)
        ratio = x.q / x.radius
        at_rim = ratio.abs() >= 1 - 4 * torch.finfo(ratio.dtype).eps
        ratio = torch.where(at_rim, torch.sign(ratio) * (1 - inset(self.margin, precision)), ratio)
        turns = torch.asin(ratio).div_(TURN)
        behind = torch.where(turns < 0, -0.5, 0.5) - turns
        turns = torch.where(x.slack.abs() > 0.25, behind, turns)
        x.slack.copy_(torch.where(differs, turns, x.slack))

    def _agreement(self, x: Phase, precision: torch.dtype) -> Tensor:
        position = torch.mul(x.slack, TURN).sin_().mul_(x.radius)
        allowed = 4 * torch.finfo(x.q.dtype).eps * x.radius
        if precision != x.q.dtype:
            narrow = torch.finfo(precision)
            allowed = position.abs().add_(narrow.tiny).mul_(narrow.eps).add_(allowed)
        agree: Tensor = position.sub_(x.q).abs_() <= allowed
        return agree

    def project_(self, x: Phase, p: Tensor, slack_p: Tensor | None = None) -> None:
        """Nothing to do: the momentum is a coordinate along the circle, so all of it is tangent."""

    def kick_(self, x: Phase, force: Tensor, h: Scalar) -> None:
        add_scaled_(x.p, torch.mul(x.slack, TURN).cos_().mul_(force), -h)

    def drift_(self, x: Phase, h: Scalar) -> None:
        if isinstance(x.radius, Tensor):
            add_scaled_(x.slack, x.p / x.radius, h / TURN)
        else:
            add_scaled_(x.slack, x.p, h / (TURN * x.radius))

    def retract_(self, x: Phase, step: Tensor, slack_step: Tensor | None) -> None:
        angle = x.slack * TURN
        x.slack.copy_(_angle(step.add_(angle.sin() * x.radius), angle.cos_().mul_(x.radius).add_(slack_step)))
        x.slack.div_(TURN)

    def finish_(self, x: Phase, hint: object, polish: bool) -> None:
        x.slack.sub_(torch.round(x.slack))  # keep the angle in [−½, ½] turns, where it has the most digits
        x.q.copy_(x.slack).mul_(TURN).sin_().mul_(x.radius)

    def virial(self, x: Phase, force: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """⟨(θ − θ₀) cos²φ ∂U/∂θ⟩ = τ⟨cos 2φ + sin φ₀ sin φ⟩ with θ₀ = r sin φ₀.

        φ has the density exp(−U/τ). U depends on it through θ = r sin φ: dU/dφ = r cos φ ∂U/∂θ. For a periodic f(φ),
        0 = ∫ d/dφ (f exp(−U/τ)) dφ, so ⟨f dU/dφ⟩ = τ⟨f'⟩. Take f = (sin φ − sin φ₀) cos φ. Then f' = cos²φ − sin²φ +
        sin φ₀ sin φ. At θ₀ = 0 this is ⟨θ cos²φ ∂U/∂θ⟩ = τ⟨cos 2φ⟩, which far from ±r is the virial theorem. Where U
        is flat both sides are 0: the angle is uniformly distributed at any temperature.
        """
        sine, start = x.q / x.radius, reference / x.radius
        squared_cosine = 1 - sine * sine
        virial = (x.q - reference) * squared_cosine * force
        divergence = squared_cosine - sine * (sine - start)
        return virial.sum(dtype=torch.float64), divergence.sum(dtype=torch.float64)

    def nearest_(self, x: Phase) -> None:
        bound = self._bound(x)
        x.q.clamp_(-bound, bound)  # type: ignore[arg-type] # numbers are fine, too

    def project_step_(self, x: Phase, step: Tensor) -> None:
        outward = (x.q.abs() >= self._bound(x) * (1 - 8 * torch.finfo(x.q.dtype).eps)) & (x.q * step > 0)
        step.masked_fill_(outward, 0.0)

    def _bound(self, x: Phase) -> Scalar:
        """A number stays one: made a tensor, it would be copied to the device at every step, and waited for."""
        return x.radius.to(x.q) if isinstance(x.radius, Tensor) else x.radius

    def norms(self, x: Phase) -> Tensor:
        return x.q.abs()

    def residual(self, x: Phase) -> Tensor:
        if x.slack is None:
            outside: Tensor = ((x.q / x.radius).square() - 1).clamp_min(0)
            return outside.max()
        error: Tensor = (x.q / x.radius).square() + torch.cos(TURN * x.slack).square() - 1
        return error.abs().max()

    def holds(self, x: Phase, precision: torch.dtype) -> bool:
        return bool(self._agreement(x, precision).all())


def _angle(y: Tensor, x: Tensor) -> Tensor:
    """atan2 whose bits do not depend on where an entry is in its tensor: a shard's are those of the whole.

    On a CPU torch's rounds the last few entries of a tensor in another way than the others.
    """
    behind = torch.full_like(y, math.pi).copysign_(y)
    return torch.atan(y / x).add_(torch.where(x < 0, behind, 0.0))
