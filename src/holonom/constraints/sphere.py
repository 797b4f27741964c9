"""Sphere: each row of a weight, or each of its other blocks, on a sphere of its own (paper eq. 3)."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from .._step.integrate import Phase, Scalar, add_scaled_, over
from ..errors import ConstraintError
from .base import INITIAL, Landing, check_radius, describe, inset, measured, norms_of, rounding, widened
from .views import PER, View, Viewed


class Sphere(Viewed):
    r"""Hold every block at ‖w‖ ≤ r (``slack=True``, paper eq. 3) or at ‖w‖ = r (``slack=False``).

    Let x = (w, ξ) and π = (p_w, p_ξ), with the slack variable ξ as one more coordinate, or x = w and π = p without
    slack. Then both are the equality ‖x‖² = r²:

    - Π:  π ← π − x (x·π)/r²
    - A:  the great circle, x ← cos(ωh) x + sin(ωh)/ω π,  π ← cos(ωh) π − ω sin(ωh) x,  ω = ‖π‖/r
    - L:  Euler–Maruyama, then x ← r x/‖x‖

    Args:
        radius: r, a float, a tensor with one radius per block, or "initial": the norm of each block when the optimizer
            is built, times ``factor``. It is kept as ``radius`` in the parameter's state and in checkpoints.
        slack: True bounds the norm, False fixes it. None: a number bounds, "initial" fixes.
        view: how a parameter is read as (…, outputs, inputs). "auto": by its module, where presets and
            :func:`holonom.partition` know it, otherwise as it is. "conv": (out, in·kh·kw). "batch": leading dimensions
            are batch. "batch conv": a stack of convolutions. Or a :class:`View`.
        margin: at ‖w‖ = r a block feels no force along w. So blocks at or beyond r are moved to r(1 − margin).
        per: what a block is.

            - "row": the weights of one output; "column": those of one input.
            - "matrix": all of (outputs, inputs).
            - "block": each matrix that is packed in a parameter, such as queries, keys and values, gates, or groups of
              a convolution. The module says how many there are, or the ``blocks`` of :func:`holonom.partition`, or
              ``view=View(blocks=n)``. Otherwise it is the whole matrix.
            - "head": each attention head. In queries, keys and values these are its outputs, in the map behind them its
              inputs. Their number is given as that of blocks is.

            Leading dimensions of a parameter without a module count matrices, such as the experts of a stack. For
            "row" give a ``view``, because a kernel has other rows.
        factor: the factor of "initial". The weights are multiplied by it once.
    """

    per = "row"

    def __init__(
        self,
        radius: Scalar | str = 1.0,
        slack: bool | None = None,
        view: View | str | None = "auto",
        margin: float = 1e-3,
        *,
        per: str = "row",
        factor: float = 1.0,
    ) -> None:
        if slack is not None and not isinstance(slack, bool):
            raise ConstraintError(f"Sphere: slack, the second argument, must be True, False or None, got {slack!r}")
        self.takes_sizes = isinstance(radius, str) and radius == INITIAL
        if not self.takes_sizes:
            check_radius(radius, "Sphere")  # type: ignore[arg-type]
        self._set_per(per, PER)
        self._set_view(view)
        if not 0 < margin < 1:
            raise ConstraintError(f"Sphere: margin must lie between 0 and 1, got {margin}")
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < math.inf:
            raise ConstraintError(f"Sphere: factor must be a positive number, got {factor!r}")
        if factor != 1 and not self.takes_sizes:
            raise ConstraintError(
                f"Sphere: factor={factor!r} multiplies the norms of radius='initial'; give radius={radius!r} the value "
                f"it should have"
            )
        self.radius: Scalar | None = None  # "initial": a parameter's own, in its state
        if not self.takes_sizes:
            self.radius = radius if isinstance(radius, Tensor) else float(radius)  # type: ignore[arg-type]
        self.factor = float(factor)
        self.has_slack = not self.takes_sizes if slack is None else bool(slack)
        self.is_bound, self.only_rescales = self.has_slack, self.takes_sizes
        self.margin = margin
        self.slots = ("slack", "slack_momentum") if self.has_slack else ()
        self.replica_dims = 0

    def __repr__(self) -> str:
        radius = repr(INITIAL) if self.takes_sizes else describe(self.radius)
        options = f"slack={self.has_slack}, view={self.block_view!r}, margin={self.margin!r}"
        options += f", per={self.per!r}" if self.per != "row" else ""
        options += f", factor={self.factor!r}" if self.factor != 1 else ""
        return f"Sphere(radius={radius}, {options})"

    def kernel_key(self) -> Hashable:
        return (
            (Sphere, self.has_slack, self.margin) if type(self) is Sphere else repr(self)
        )  # radii and blocks are those of a kernel's inputs

    def over_replicas(self, dims: int) -> Sphere:
        if dims == self.replica_dims:
            return self
        other = copy.copy(self)
        other.replica_dims = dims
        return other

    # ── blocks ───────────────────────────────────────────────────────────────────────────────────

    def view(self, q: Tensor) -> Tensor:
        """(…, n): the last dimension is a block."""
        x = self.matrices(q)
        if self.per == "row":
            return x
        return x.mT if self.per == "column" else x.flatten(self._first(x))

    def _first(self, matrices: Tensor) -> int:
        """The first dimension of a block that is a whole matrix, or a vector."""
        return max(matrices.ndim - 2, self.replica_dims)

    def is_view(self, q: Tensor) -> bool:
        if not super().is_view(q) or self.per in ("row", "column"):
            return super().is_view(q)
        x = self.matrices(q)
        first = self._first(x)
        try:
            x.view(*x.shape[:first], x.shape[first:].numel())
        except RuntimeError:
            return False
        return True

    def write_(self, q: Tensor, block: Tensor) -> None:
        if self.per == "column":
            block = block.mT
        super().write_(q, block.reshape(q.shape) if self.reading is None else block)

    def check(self, q: Tensor, name: str) -> None:
        if q.ndim <= self.replica_dims:
            raise ConstraintError(f"Sphere on {name}: a scalar has no rows; use Circle")
        if self.per in ("column", "head") and q.ndim < 2 + self.replica_dims:
            raise ConstraintError(
                f"Sphere on {name} of shape {tuple(q.shape)}: per={self.per!r} needs a matrix; for per='row' a vector "
                f"is one row"
            )
        self.check_view(q, name)
        blocks = self.view(q).shape[:-1]
        if isinstance(self.radius, Tensor) and self.radius.ndim and self.radius.shape != blocks:
            several = {"matrix": "matrices"}.get(self.per, f"{self.per}s")
            raise ConstraintError(
                f"Sphere on {name}: {tuple(self.radius.shape)} radii for {several} of shape {tuple(blocks)}; "
                f"give one radius per {self.per}, or a single one"
            )

    # ── radii ────────────────────────────────────────────────────────────────────────────────────

    def radius_of(self, q: Tensor, sizes: Tensor | None = None) -> Scalar:
        radius = self.radius if sizes is None else sizes
        if radius is None:
            raise ConstraintError(
                f"{self!r} has no radius of its own: each block's is kept by the optimizer that was built with it"
            )
        if not isinstance(radius, Tensor):
            return radius
        radius = radius.to(q)
        return radius.reshape(radius.shape + (1,) * (self.view(q).ndim - radius.ndim)) if radius.ndim else radius

    def sizes(self, q: Tensor, name: str) -> Tensor | None:
        return self.sizes_from(norms_of(self.view(q), (-1,)), q, name) if self.takes_sizes else None

    def sizes_from(self, norms: Tensor, q: Tensor, name: str) -> Tensor:
        norms = norms.reshape(self.view(q).shape[:-1])
        return measured(norms, q, self.factor, name, "Sphere(radius='initial')")

    def held_at(self, sizes: Tensor | None) -> Sphere:
        if sizes is None:
            return self
        other = copy.copy(self)
        other.radius, other.takes_sizes = sizes, False
        return other

    def reach(self, shape: Sequence[int]) -> tuple[int, ...]:
        found = self.matrix_reach(shape, self.per)
        return (*(1 for _ in shape[: self.replica_dims]), *found[self.replica_dims :])

    @property
    def per_block(self) -> Scalar | None:
        return self.radius

    def land_(self, q: Tensor, name: str) -> Landing:
        # Norms in the precision of the state: those of half precision would not say which blocks are at the rim.
        exact = widened(q)
        rows = self.view(exact)
        norm = norms_of(rows, (-1,)).to(exact.dtype).unsqueeze(-1)
        r = self.radius_of(exact) * torch.ones_like(norm)
        if self.has_slack:
            # As lift() will see it: a block whose slack rounds to nothing is at the rim.
            off = r**2 - rows.square().sum(-1, keepdim=True) <= 8 * torch.finfo(exact.dtype).eps * r**2
            target = r * (1 - inset(self.margin, q.dtype))
            shift = (target - norm).abs()
        else:
            target = r
            if bool((norm == 0).any()):
                what = "row" if self.per == "row" else f"block (per={self.per!r})"
                raise ConstraintError(
                    f"Sphere on {name}: a {what} is zero and has no nearest point on the sphere; initialise it first"
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

    # A block and its slack are one vector x = (w, ξ); without slack the second part is absent.

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

    def nearest_(self, x: Phase) -> None:
        squares = _dot(x.q, x.q, None, None)
        moves = squares > (x.radius**2 if self.is_bound else 0)
        x.q.mul_(torch.where(moves, x.radius * squares.rsqrt(), 1.0))

    def project_step_(self, x: Phase, step: Tensor) -> None:
        along = _dot(x.q, step, None, None).div_(x.radius**2)
        if self.is_bound:
            inside = x.radius * (1 - 8 * torch.finfo(x.q.dtype).eps)
            outward = (along > 0) & (_dot(x.q, x.q, None, None) >= inside**2)
            along = torch.where(outward, along, 0.0)
        step.addcmul_(x.q, along, value=-1)

    def norms(self, x: Phase) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(x.q, dim=-1)
        return norms

    def residual(self, x: Phase) -> Tensor:
        error: Tensor = _dot(x.q, x.q, x.slack, x.slack) / x.radius**2 - 1
        return error.clamp_min(0).max() if self.is_bound and x.slack is None else error.abs().max()

    def cotangency(self, x: Phase) -> Tensor:
        error: Tensor = _dot(x.q, x.p, x.slack, x.slack_p) / x.radius
        return error.abs().max()

    def degrees_of_freedom(self, q: Tensor) -> int:
        return q.numel() if self.has_slack else q.numel() - self.view(q).shape[:-1].numel()


def _dot(a: Tensor, b: Tensor, slack_a: Tensor | None, slack_b: Tensor | None) -> Tensor:
    """Dot product of every block, slack variables included, kept as a column."""
    total = (a * b).sum(-1, keepdim=True)
    return total if slack_a is None or slack_b is None else total.addcmul_(slack_a, slack_b)
