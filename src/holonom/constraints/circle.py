"""Circle: every weight on its own circle, θ² + ξ² = r², so that |θ| ≤ r (paper eq. 2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import ConstraintError
from ..lists import Scalar, Tensors, add_product_, add_scaled_, copy_
from ..trigonometry import cosines, sines, turns
from .base import Constraint, Copies, Landing, Phase, check_radius, describe, exact, inset, on, rounded


class Circle(Constraint):
    r"""Bound every weight by |θ| ≤ r through θ² + ξ² = r² (paper eq. 2, thesis 4.7.2.3–4).

    The circle is one angle: θ = r sin φ, ξ = r cos φ. The state holds φ/2π (``turns``) and the
    momentum along the circle, v = r φ̇, so that the constraint and cotangency hold identically:

    - B:  v ← v − h cos φ ∂L/∂θ
    - O:  v ← e^{−γh} v + √(τ(1−e^{−2γh})) R
    - A:  φ ← φ + h v/r, the exact rotation
    - L:  φ ← atan2(θ − h ∂L/∂θ + √(2τh) R_θ, ξ + √(2τh) R_ξ), the radial projection (4.47)

    With no loss the angle is uniform and θ follows the arcsine law on (−r, r): that is the prior
    the lift puts on a weight.

    Args:
        radius: r, a float or a tensor that broadcasts to the parameter.
        margin: where the tangent is pure slack (|θ| = r) a weight feels no force. Weights at or
            beyond r land at r(1 − margin), strictly inside.
    """

    slots = ("turns",)

    @property
    def elementwise(self) -> bool:
        return not isinstance(self.radius, Tensor)

    def __init__(self, radius: Scalar, margin: float = 1e-3) -> None:
        check_radius(radius, "Circle")
        if not 0 < margin < 1:
            raise ConstraintError(f"Circle: margin must lie between 0 and 1, got {margin}")
        self.radius = radius if isinstance(radius, Tensor) else float(radius)
        self._copies: Copies = {}
        self.margin = margin

    @property
    def constants(self) -> tuple[float, ...]:
        return () if isinstance(self.radius, Tensor) else (self.radius,)

    def __repr__(self) -> str:
        return f"Circle(radius={describe(self.radius)}, margin={self.margin!r})"

    def check(self, q: Tensor, name: str) -> None:
        if isinstance(self.radius, Tensor):
            try:
                torch.broadcast_to(self.radius, q.shape)
            except RuntimeError:
                raise ConstraintError(
                    f"Circle on {name}: a radius of shape {tuple(self.radius.shape)} does not broadcast "
                    f"to the parameter's {tuple(q.shape)}"
                ) from None

    def _r(self, like: Tensor) -> Scalar:
        return on(self.radius, like, self._copies) if isinstance(self.radius, Tensor) else self.radius

    def land_(self, q: Tensor, name: str) -> Landing:
        # As slack() will see it: a ratio that rounds to 1 is at the rim.
        ratio = (exact(q) / self._r(exact(q))).abs()
        outside = ratio >= 1 - 4 * torch.finfo(ratio.dtype).eps
        landed = torch.where(outside, torch.sign(q) * (self._r(q) * (1 - inset(self.margin, q.dtype))), q)
        distance = (landed - q).abs().max().item() if q.numel() else 0.0
        q.copy_(landed)
        return Landing(int(outside.sum()), q.numel(), distance)

    def slack(self, q: Tensor) -> tuple[Tensor, ...]:
        return (torch.asin(q / self._r(q)) / (2 * math.pi),)

    def kick_(self, phase: Phase, force: Tensors, h: Scalar) -> None:
        add_product_(phase.p, cosines(phase.slack), force, -h)

    def drift_(self, phase: Phase, h: Scalar) -> None:
        if isinstance(self.radius, Tensor):
            for u, v in zip(phase.slack, phase.p, strict=True):
                add_scaled_([u], [v / self._r(u)], h / (2 * math.pi))
        else:
            add_scaled_(phase.slack, phase.p, h * (1 / (2 * math.pi * self.radius)))

    def settle_(self, phase: Phase, step: int) -> None:
        # Whole turns leave θ alone but cost the angle its last bits.
        if torch.compiler.is_compiling():  # the multi-tensor round would split the pass
            for u in phase.slack:
                u.sub_(torch.round(u))
        else:
            torch._foreach_sub_(phase.slack, torch._foreach_round(phase.slack))
        if isinstance(self.radius, Tensor):
            copy_(phase.q, [x.mul_(self._r(x)) for x in sines(phase.slack)])
        else:
            copy_(phase.q, sines(phase.slack, self.radius))

    def euler_(self, phase: Phase, step: Tensors) -> None:
        count = len(phase.q)
        angles = zip(phase.slack, sines(phase.slack), cosines(phase.slack), step[:count], step[count:], strict=True)
        for u, sine, cosine, theta, xi in angles:
            r = self._r(u)
            u.copy_(turns(r * sine + theta, r * cosine + xi))

    def residual(self, phase: Phase) -> Tensor:
        worst = []
        for q, u in zip(phase.q, phase.slack, strict=True):
            theta = (q / self._r(q)).to(u.dtype)
            worst.append((theta.square() + torch.cos(2 * math.pi * u).square() - 1).abs().max())
        return torch.stack(worst).max()

    def holds(self, phase: Phase, precision: torch.dtype) -> bool:
        pairs = zip(phase.q, phase.slack, strict=True)
        own, half = torch.finfo(phase.q[0].dtype).eps, rounded(phase, precision, 1)
        for q, u in pairs:
            sine = torch.sin(2 * math.pi * u)
            if not bool((((q / self._r(q)).to(u.dtype) - sine).abs() <= 4 * own + half * sine.abs()).all()):
                return False
        return True

    def degrees_of_freedom(self, q: Tensor) -> int:
        return q.numel()  # θ and ξ, less one constraint each
