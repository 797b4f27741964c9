"""Sphere: every row of a weight on its own sphere, with or without a slack variable (paper eq. 3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import ConstraintError
from ..lists import Scalar, Tensors, computed_once, spread
from .base import (
    VIEWS,
    Constraint,
    Copies,
    Landing,
    Phase,
    as_matrix,
    check_radius,
    check_view,
    describe,
    exact,
    inset,
    on,
)


class Sphere(Constraint):
    r"""Hold every row at ‖w‖ ≤ r (``slack=True``, paper eq. 3) or at ‖w‖ = r (``slack=False``).

    With the slack variable as one more coordinate, x = (w, ξ) and π = (p_w, p_ξ), both are the
    equality ‖x‖² = r²:

    - Π:  π ← π − x (x·π)/r²
    - A:  the great circle, x ← cos(ωh) x + sin(ωh)/ω π,  π ← cos(ωh) π − ω sin(ωh) x,  ω = ‖π‖/r
    - L:  Euler–Maruyama, then x ← r x/‖x‖

    A row is what stands in the last dimension; ``view="conv"`` takes one row per output channel,
    (out, in·kh·kw), and ``view="batch"`` reads all leading dimensions as batch.

    Args:
        radius: r, a float or a tensor with one radius per row.
        slack: True bounds the norm (max-norm with dynamics), False fixes it.
        margin: at ‖w‖ = r the tangent along w is pure slack; rows at or beyond r land at r(1 − margin).
    """

    elementwise = False

    def __init__(self, radius: Scalar = 1.0, slack: bool = True, view: str | None = None, margin: float = 1e-3) -> None:
        check_radius(radius, "Sphere")
        if view not in VIEWS:
            raise ConstraintError(f"Sphere: view must be one of {VIEWS}, got {view!r}")
        if not 0 < margin < 1:
            raise ConstraintError(f"Sphere: margin must lie between 0 and 1, got {margin}")
        self.radius = radius if isinstance(radius, Tensor) else float(radius)
        self._copies: Copies = {}
        self.has_slack = slack
        self.block_view = view
        self.margin = margin
        self.slots = ("slack", "slack_momentum") if slack else ()

    @property
    def constants(self) -> tuple[float, ...]:
        return () if isinstance(self.radius, Tensor) else (self.radius,)

    def __repr__(self) -> str:
        options = f"slack={self.has_slack}, view={self.block_view!r}, margin={self.margin!r}"
        return f"Sphere(radius={describe(self.radius)}, {options})"

    def view(self, q: Tensor) -> Tensor:
        return as_matrix(q, self.block_view)

    def check(self, q: Tensor, name: str) -> None:
        if q.ndim == 0:
            raise ConstraintError(f"Sphere on {name}: a scalar has no rows; use Circle")
        check_view(q, name, self.block_view, "Sphere")
        rows = self.view(q).shape[:-1]
        if isinstance(self.radius, Tensor) and self.radius.ndim and self.radius.shape != rows:
            raise ConstraintError(
                f"Sphere on {name}: {tuple(self.radius.shape)} radii for rows of shape {tuple(rows)}; "
                f"give one radius per row, or a single one"
            )

    def _r(self, like: Tensor) -> Scalar:
        if not isinstance(self.radius, Tensor):
            return self.radius
        return spread(on(self.radius, like, self._copies), like)

    def land_(self, q: Tensor, name: str) -> Landing:
        norm = torch.linalg.vector_norm(q, dim=-1, keepdim=True)
        r = self._r(q)
        if self.has_slack:
            # As slack() will see it: a row whose slack rounds to nothing is at the rim.
            x = exact(q)
            square = self._r(x) ** 2 * torch.ones_like(norm, dtype=x.dtype)
            off = square - x.square().sum(-1, keepdim=True) <= 8 * torch.finfo(x.dtype).eps * square
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
        q.mul_(torch.where(off, target / norm, torch.ones_like(norm)))
        return Landing(int(off.sum()), norm.numel(), (shift * off).max().item() if q.numel() else 0.0)

    def slack(self, q: Tensor) -> tuple[Tensor, ...]:
        if not self.has_slack:
            return ()
        xi = (self._r(q) ** 2 - q.square().sum(-1, keepdim=True)).clamp_min(0).sqrt()
        return xi, torch.zeros_like(xi)

    # Every method below reads a row with its slack as one vector; without slack the second part is absent.
    # Each computes its row-wise dot products from what it was given and then writes once: fewer passes over
    # memory, and a form that compiles into one.

    def kick_(self, phase: Phase, force: Tensors, h: Scalar) -> None:
        for x, m, f in zip(*self._vectors(phase, phase.momenta), force, strict=True):
            time = spread(h, f) if isinstance(h, Tensor) else h
            self._write_tangent_(x, m, [m[0] - f * time, *m[1:]])

    def project_(self, phase: Phase, momenta: Tensors) -> None:
        for x, m in zip(*self._vectors(phase, momenta), strict=True):
            self._write_tangent_(x, m, m)

    def _write_tangent_(self, x: Tensors, momentum: Tensors, value: Tensors) -> None:
        """momentum ← Π value."""
        along = _dot(x, value) / self._r(x[0]) ** 2
        for part, new, target in zip(x, value, momentum, strict=True):
            target.copy_(new - along * part)

    def drift_(self, phase: Phase, h: Scalar) -> None:
        for x, m in zip(*self._vectors(phase, phase.momenta), strict=True):
            time = spread(h, x[0]) if isinstance(h, Tensor) else h
            mm = _dot(m, m)
            omega = mm.sqrt() / self._r(x[0])
            cos, sin_over_omega = torch.cos(omega * time), time * torch.sinc(omega * time / math.pi)
            # The great circle keeps the norm; what rounding adds is divided out where the new row is written.
            norm2 = cos.square() * _dot(x, x) + 2 * cos * sin_over_omega * _dot(x, m) + sin_over_omega.square() * mm
            scale = self._r(x[0]) * norm2.rsqrt()
            along, across, back = cos * scale, sin_over_omega * scale, omega.square() * sin_over_omega
            along, across, back, cos = computed_once([along, across, back, cos])
            for part, momentum in zip(x, m, strict=True):
                turned = part * along + momentum * across  # both before either is written
                momentum.copy_(momentum * cos - part * back)
                part.copy_(turned)

    def euler_(self, phase: Phase, step: Tensors) -> None:
        for x, z in zip(*self._vectors(phase, step), strict=True):
            moved = [part + change for part, change in zip(x, z, strict=True)]
            scale = self._r(x[0]) * _dot(moved, moved).rsqrt()
            for part, new in zip(x, moved, strict=True):
                part.copy_(new * scale)

    def _vectors(self, phase: Phase, others: Tensors) -> tuple[list[Tensors], list[Tensors]]:
        """Positions, and momenta or steps, as one list [row, slack] a parameter."""
        count = len(phase.q)
        return _pairs(phase.ambient, count), _pairs(others, count)

    def residual(self, phase: Phase) -> Tensor:
        worst = [(_dot(x, x) / self._r(x[0]) ** 2 - 1).abs().max() for x in _pairs(phase.ambient, len(phase.q))]
        return torch.stack(worst).max()

    def cotangency(self, phase: Phase) -> Tensor:
        pairs = zip(*self._vectors(phase, phase.momenta), strict=True)
        return torch.stack([(_dot(x, m) / self._r(x[0])).abs().max() for x, m in pairs]).max()

    def degrees_of_freedom(self, q: Tensor) -> int:
        rows = self.view(q).shape[:-1].numel()
        return q.numel() if self.has_slack else q.numel() - rows


def _pairs(tensors: Tensors, count: int) -> list[Tensors]:
    """[w₁, w₂, …, ξ₁, ξ₂, …] → [[w₁, ξ₁], [w₂, ξ₂], …]."""
    return [tensors[i::count] for i in range(count)]


def _dot(x: Tensors, y: Tensors) -> Tensor:
    """Row-wise dot product over all parts, kept as a column."""
    total = (x[0] * y[0]).sum(-1, keepdim=True)
    for a, b in zip(x[1:], y[1:], strict=True):
        total = total + a * b
    return total
