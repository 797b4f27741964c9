"""Sphere: every row of a weight on its own sphere, with or without a slack variable (paper eq. 3)."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor

from .._step.integrate import Phase, Scalar, add_scaled_, over
from ..errors import ConstraintError
from .base import Landing, check_radius, describe, inset, rounding, widened
from .views import View, Viewed


class Sphere(Viewed):
    r"""Hold every row at ‖w‖ ≤ r (``slack=True``, paper eq. 3) or at ‖w‖ = r (``slack=False``).

    With the slack variable as one more coordinate, x = (w, ξ) and π = (p_w, p_ξ), both are the
    equality ‖x‖² = r²:

    - Π:  π ← π − x (x·π)/r²
    - A:  the great circle, x ← cos(ωh) x + sin(ωh)/ω π,  π ← cos(ωh) π − ω sin(ωh) x,  ω = ‖π‖/r
    - L:  Euler–Maruyama, then x ← r x/‖x‖

    A row holds the weights of one output. ``view`` says how a parameter is read as (…, outputs, inputs): "auto", by
    its module where presets and :func:`holonom.partition` know it and as it is otherwise, which more than two
    dimensions are refused for; "conv", (out, in·kh·kw); "batch", all leading dimensions as batch; "batch conv", a stack
    of convolutions; or a :class:`View`, whose ``blocks`` have no effect, because every row is constrained by itself.

    Args:
        radius: r, a float or a tensor with one radius per row.
        slack: True bounds the norm (max-norm with dynamics), False fixes it.
        margin: at ‖w‖ = r the tangent along w is pure slack; rows at or beyond r land at r(1 − margin).
    """

    def __init__(
        self, radius: Scalar = 1.0, slack: bool = True, view: View | str | None = "auto", margin: float = 1e-3
    ) -> None:
        check_radius(radius, "Sphere")
        self._set_view(view)
        if not 0 < margin < 1:
            raise ConstraintError(f"Sphere: margin must lie between 0 and 1, got {margin}")
        self.radius = radius if isinstance(radius, Tensor) else float(radius)
        self.has_slack = slack
        self.margin = margin
        self.slots = ("slack", "slack_momentum") if slack else ()

    def __repr__(self) -> str:
        options = f"slack={self.has_slack}, view={self.block_view!r}, margin={self.margin!r}"
        return f"Sphere(radius={describe(self.radius)}, {options})"

    def kernel_key(self) -> Hashable:
        return (
            (Sphere, self.has_slack, self.margin) if type(self) is Sphere else repr(self)
        )  # the radius is an input of kernels

    def _set_view(self, view: View | str | None) -> None:
        super()._set_view(replace(view, blocks=1) if isinstance(view, View) else view)

    def check(self, q: Tensor, name: str) -> None:
        if q.ndim == 0:
            raise ConstraintError(f"Sphere on {name}: a scalar has no rows; use Circle")
        self.check_view(q, name)
        rows = self.view(q).shape[:-1]
        if isinstance(self.radius, Tensor) and self.radius.ndim and self.radius.shape != rows:
            raise ConstraintError(
                f"Sphere on {name}: {tuple(self.radius.shape)} radii for rows of shape {tuple(rows)}; "
                f"give one radius per row, or a single one"
            )

    def radius_of(self, q: Tensor) -> Scalar:
        if not isinstance(self.radius, Tensor):
            return self.radius
        radius = self.radius.to(q)
        return radius.reshape(radius.shape + (1,) * (self.view(q).ndim - radius.ndim)) if radius.ndim else radius

    def land_(self, q: Tensor, name: str) -> Landing:
        rows = self.view(q)
        norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        r = self.radius_of(q)
        if self.has_slack:
            # As lift() will see it: a row whose slack rounds to nothing is at the rim.
            exact = widened(q)
            square = self.radius_of(exact) ** 2 * torch.ones_like(norm, dtype=exact.dtype)
            squares = self.view(exact).square().sum(-1, keepdim=True)
            off = square - squares <= 8 * torch.finfo(exact.dtype).eps * square
            target = r * (1 - inset(self.margin, q.dtype)) * torch.ones_like(norm)
            shift = (target - norm).abs()
        else:
            target = r * torch.ones_like(norm)
            if bool((norm == 0).any()):
                raise ConstraintError(
                    f"Sphere on {name}: a row is zero and has no nearest point on the sphere; initialise it first"
                )
            shift = (target - norm).abs()
            off = shift > 4 * torch.finfo(q.dtype).eps * target
        self.write_(q, rows * torch.where(off, target / norm, torch.ones_like(norm)))
        return Landing(int(off.sum()), norm.numel(), (shift * off).max().item() if q.numel() else 0.0)

    def lift(self, q: Tensor) -> tuple[Tensor, ...]:
        if not self.has_slack:
            return ()
        xi = (self.radius_of(q) ** 2 - self.view(q).square().sum(-1, keepdim=True)).clamp_min(0).sqrt()
        return xi, torch.zeros_like(xi)

    # A row and its slack are one vector x = (w, ξ); without slack the second part is absent.

    def adopt_(self, x: Phase, precision: torch.dtype) -> None:
        r"""Set the slack from the row where they differ; without slack, scale the row. Momenta there become tangent.

        With ε the rounding (``finfo.eps``) of the state and, where the parameter's precision is lower, ε' of that,
        they differ unless |(‖w‖² + ξ²)/r² − 1| ≤ 32ε, or ≤ 32ε + 4ε', so NaN differs. Then ξ = ±√(r² − ‖w‖²) with
        the sign it had. A row with r² − ‖w‖² ≤ 8εr² is first scaled to r(1 − margin). A row without slack is scaled
        to r; if it is zero it stays, and the step's force gives it a direction.
        """
        differs = ~self._agreement(x, precision)
        square, squares = x.radius**2, x.q.square().sum(-1, keepdim=True)
        if x.slack is None:
            scale, moved = x.radius * squares.rsqrt(), squares > 0
        else:
            inside = square * (1 - inset(self.margin, precision)) ** 2
            moved = square - squares <= 8 * torch.finfo(squares.dtype).eps * square
            slack = (square - torch.where(moved, inside, squares)).sqrt()
            x.slack.copy_(torch.where(differs, torch.where(x.slack < 0, -slack, slack), x.slack))
            scale = (inside / squares).sqrt()
        x.q.mul_(torch.where(differs & moved, scale, 1.0))
        if x.p is not None:
            along = torch.where(differs, _dot(x.q, x.p, x.slack, x.slack_p).div_(square), 0.0)
            for part, momentum in ((x.q, x.p), (x.slack, x.slack_p)):
                if part is not None and momentum is not None:
                    momentum.addcmul_(part, along, value=-1)

    def _agreement(self, x: Phase, precision: torch.dtype) -> Tensor:
        error = _dot(x.q, x.q, x.slack, x.slack).div_(x.radius**2).sub_(1)
        agree: Tensor = error.abs_() <= 32 * torch.finfo(x.q.dtype).eps + rounding(x, precision, 4)
        return agree

    def holds(self, x: Phase, precision: torch.dtype) -> bool:
        return bool(self._agreement(x, precision).all())

    def project_(self, x: Phase, p: Tensor, slack_p: Tensor | None = None) -> None:
        along = _dot(x.q, p, x.slack, slack_p).div_(x.radius**2)
        p.addcmul_(x.q, along, value=-1)
        if slack_p is not None:
            slack_p.addcmul_(x.slack, along, value=-1)

    def kick_(self, x: Phase, force: Tensor, h: Scalar) -> None:
        add_scaled_(x.p, force, -h)
        self.project_(x, x.p, x.slack_p)

    def drift_(self, x: Phase, h: Scalar) -> None:
        h = over(h, x.q)
        speed2 = _dot(x.p, x.p, x.slack_p, x.slack_p)
        omega = speed2.sqrt() / x.radius
        angle = omega * h
        cos, sine = torch.cos(angle), torch.sinc(angle / math.pi) * h  # sine is sin(ωh)/ω
        # The great circle keeps the norm; what rounding adds is divided out where the new row is written.
        norm2 = cos.square() * _dot(x.q, x.q, x.slack, x.slack) + 2 * cos * sine * _dot(x.q, x.p, x.slack, x.slack_p)
        scale = norm2.add_(sine.square().mul_(speed2)).rsqrt_().mul_(x.radius)
        # Joined, so that a kernel computes them once a row; by themselves it would compute them for every few entries.
        columns = torch.cat([cos * scale, sine * scale, cos, omega.square_().mul_(sine)], -1)
        along, across, cos, back = torch.split(columns, 1, -1)
        for part, momentum in ((x.q, x.p), (x.slack, x.slack_p)):
            if part is not None and momentum is not None:
                moved = torch.addcmul(part * along, momentum, across)  # both before either is written
                momentum.mul_(cos).addcmul_(part, back, value=-1)
                part.copy_(moved)

    def retract_(self, x: Phase, step: Tensor, slack_step: Tensor | None) -> None:
        moved = step.add_(x.q)
        slack = None if slack_step is None else slack_step.add_(x.slack)
        scale = _dot(moved, moved, slack, slack).rsqrt_().mul_(x.radius)
        x.q.copy_(moved.mul_(scale))
        if x.slack is not None and slack is not None:
            x.slack.copy_(slack.mul_(scale))

    def residual(self, x: Phase) -> Tensor:
        error: Tensor = _dot(x.q, x.q, x.slack, x.slack) / x.radius**2 - 1
        return error.abs().max()

    def cotangency(self, x: Phase) -> Tensor:
        error: Tensor = _dot(x.q, x.p, x.slack, x.slack_p) / x.radius
        return error.abs().max()

    def degrees_of_freedom(self, q: Tensor) -> int:
        rows = self.view(q).shape[:-1].numel()
        return q.numel() if self.has_slack else q.numel() - rows


def _dot(a: Tensor, b: Tensor, slack_a: Tensor | None, slack_b: Tensor | None) -> Tensor:
    """Row-wise dot product, slack variables included, kept as a column."""
    total = (a * b).sum(-1, keepdim=True)
    return total if slack_a is None or slack_b is None else total.addcmul_(slack_a, slack_b)
