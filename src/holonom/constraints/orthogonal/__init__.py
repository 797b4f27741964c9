"""Orthogonal: QᵀQ = c²I for the tall orientation of a weight (paper eq. 4, Algorithms 1 and 2)."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

from ..._devices import is_host
from ..._step.integrate import Normals, Phase, Scalar, add_scaled_, over
from ...errors import ConstraintError
from ..base import INITIAL, Landing, Traits, measured, norms_of, rounding, widened
from ..matrices import Matrices
from ..views import View
from . import on_device
from .matmul import (
    gram,
    gram_error,
    is_blocked,
    longest_column,
    product_within,
    skew_gram,
    skew_part,
    subtract_product_,
)
from .multiplier import deviation
from .polar import approach, nearest
from .projection import divided, move_, rattle_, rattle_each_
from .scale import checked_scale, on_unit_, relative_gram_error, scaled, unscaled

_DRIFTS_BETWEEN = 64  # polishes, at most: those of BAAOAAB and some to spare


class Orthogonal(Matrices):
    r"""Keep a weight's columns (or rows, if there are fewer of them) orthonormal.

    Q is the *tall* orientation of the weight, r × s with s = min(out, in), and QᵀQ = I_s. Both the
    overdamped step (Algorithm 1) and RATTLE's drift (Algorithm 2) solve for a symmetric matrix Λ with

    .. math:: Q' = Q + Z - QΛ, \qquad Q'^{⊤} Q' = I,

    where Z is the step that ignores the constraint. Q'ᵀQ' depends on Z only through the s × s
    matrices Y = QᵀZ and ZᵀZ. So the quasi-Newton iteration (4.55), Λ ← Λ + ½(Q'ᵀQ' − I), runs on those
    (:mod:`.multiplier`), and only their construction and the product QΛ are products of tall matrices:

    - Π:  P ← P − ½Q(PᵀQ + QᵀP)                                        (14), (4.15)
    - A:  Q' as above with Z = hP;  P ← Π_{Q'}(P − QΛ/h)                (RATTLE, 4.56)
    - L:  Q' as above with Z = −h∇L + √(2τh) R                          (4.53)

    Λ removes the symmetric part of QᵀZ. So Q' does not depend on the normal part of P, and no letter has to project.
    The state is ``chord``: (Q' − Q)/h of the last drift, and what letters added since. The momentum is its tangent
    part, Π·chord, which :meth:`holonom.Langevin.synchronize` leaves. A short step takes two products, one of them
    symmetric (:mod:`.projection`).

    All tangent directions of a square weight are rotations. Its state is ``spin``, the skew matrix Ω = QᵀP. Noise is
    drawn in the weight's own frame, where it has the same law:

    - B:  Ω ← Ω − h skew(Qᵀ∇L)
    - O:  Ω ← exp(−γh) Ω + √(τ(1 − exp(−2γh))) skew(R)
    - A:  Q ← Q(I + K + D) with K = hΩ and D = √(I + K²) − I.  Ω stays:  Q'ᵀ(Q' − Q)/h = (K − D)/h, and D is symmetric

    This is the same RATTLE step. It takes two products, and those of D, which short steps do not need.

    With a ``scale`` c, weights are W = cQ, and a step is that of Q = W/c with P/c and ∇L/c (:mod:`.scale`).

    Args:
        view: how a parameter is read as matrices. "auto": by its module, where presets and :func:`holonom.partition`
            know it; otherwise as it is, and more than two dimensions are refused. None: a matrix. "conv":
            (out, in·kh·kw). "batch": a stack of matrices. "batch conv": a stack of convolutions. Or a :class:`View`.
        iterations: K of the papers: exactly that many quasi-Newton iterations, converged or not.
        tolerance: otherwise, iterate until max|Q'ᵀQ' − I| is below this (default: a few roundings).
        per: what is orthogonal by itself. "block": each matrix that is packed in a parameter (queries, keys and values;
            gates; groups of a convolution). "matrix": all of them as one, or each matrix of a stack. "head": each
            attention head. As for :class:`~holonom.constraints.Sphere`.
        scale: c, a number, or "initial": each block keeps the Frobenius norm that it has when the optimizer is built,
            c = ‖W‖/√s. It is kept as ``radius`` in the parameter's state and in checkpoints.
    """

    can_be = "orthogonal"
    traits = Traits(rowwise=False, stacked=True, padded=True, geodesic=False, can_fail=True)

    def __init__(
        self,
        view: View | str | None = "auto",
        iterations: int | None = None,
        tolerance: float | None = None,
        *,
        scale: float | str = 1.0,
        per: str = "block",
    ) -> None:
        if view == INITIAL or (isinstance(view, (int, float)) and not isinstance(view, bool)):
            raise ConstraintError(f"Orthogonal: the first argument is view; write Orthogonal(scale={view!r})")
        self._set_per(per, ("matrix", "head", "block"))
        self._set_view(view)
        self.scale: Scalar | None = checked_scale(scale)  # "initial": a parameter's own, in its state
        self.takes_sizes = self.scale is None
        if iterations is not None and (not isinstance(iterations, int) or iterations < 1):
            raise ConstraintError(f"Orthogonal: iterations must be a whole number of at least 1, got {iterations!r}")
        if tolerance is not None and not 0 < tolerance < 1:
            raise ConstraintError(f"Orthogonal: tolerance must lie between 0 and 1, got {tolerance!r}")
        if iterations is not None and tolerance is not None:
            raise ConstraintError("Orthogonal: give iterations (a fixed K) or a tolerance, not both")
        self.iterations = iterations
        self.tolerance = tolerance
        if iterations is not None:  # K iterations leave what they leave
            self.lost = 0.5
        elif tolerance is not None:
            self.lost = max(self.lost, 2 * tolerance)
        self._short_steps = True

    def __repr__(self) -> str:
        options = f"view={self.block_view!r}, iterations={self.iterations}, tolerance={self.tolerance}"
        if self.takes_sizes or self.scale != 1:
            options += f", scale={INITIAL if self.takes_sizes else self.scale!r}"
        options += f", per={self.per!r}" if self.per != "block" else ""
        return f"Orthogonal({options})"

    def in_half_precision(self) -> Orthogonal:
        """A space without short steps, which would turn the rounding to half precision into momentum."""
        other = copy.copy(self)
        other._short_steps = False
        return other

    def momentum_name(self, q: Tensor) -> str:
        if self.iterations is not None:
            return "momentum"
        return "spin" if _square(self.view(q)) else "chord"

    # ── the scale ────────────────────────────────────────────────────────────────────────────────

    def radius_of(self, q: Tensor, sizes: Tensor | None = None) -> Scalar | None:
        scale = self.scale if sizes is None else sizes
        if scale is None:
            raise ConstraintError(
                f"{self!r} has no scale of its own: each block's is kept by the optimizer that was built with it"
            )
        if isinstance(scale, Tensor):
            return scale.to(q)[..., None, None]
        return None if scale == 1 else scale

    def sizes(self, q: Tensor, name: str) -> Tensor | None:
        return self.sizes_from(norms_of(self.view(q), (-2, -1)), q, name) if self.takes_sizes else None

    def sizes_from(self, norms: Tensor, q: Tensor, name: str) -> Tensor:
        shape = self.view(q).shape
        norms = norms.reshape(shape[:-2]) / math.sqrt(shape[-1])
        return measured(norms, q, 1.0, name, "Orthogonal(scale='initial')")

    @property
    def per_block(self) -> Scalar | None:
        return self.scale

    def held_at(self, sizes: Tensor | None) -> Orthogonal:
        if sizes is None:
            return self
        other = copy.copy(self)
        other.scale, other.takes_sizes = sizes, False
        return other

    def land_(self, q: Tensor, name: str) -> Landing:
        block = self.view(q)
        exact = block.double()
        c = self.radius_of(exact)
        orthogonal, sigma = nearest(unscaled(exact, c), name)
        distance = scaled(torch.linalg.vector_norm(sigma - 1, dim=-1)[..., None, None], c)
        allowed = (16 if q.dtype.itemsize >= 4 else 2) * torch.finfo(q.dtype).eps
        allowed += math.sqrt(block.shape[-2]) * torch.finfo(sigma.dtype).eps  # the decomposition's own
        moved = ((sigma - 1).abs().amax(-1) > allowed)[..., None, None]
        # What is orthogonal to rounding stays as it is, bit for bit.
        self.write_(q, torch.where(moved, scaled(orthogonal, c).to(q.dtype), block))
        return Landing(int(moved.sum()), moved.numel(), (distance * moved).max().item())

    def adopt_(self, x: Phase, precision: torch.dtype) -> None:
        """Move Q to the nearest orthogonal matrix if its columns, or their sum, have the wrong length.

        On a device nothing is read back. There Q is only scaled to the right Frobenius norm, if it has another; later
        steps remove the rest (:mod:`.on_device`).
        """
        allowed = 128 * torch.finfo(x.q.dtype).eps + rounding(x, precision, 4)
        # What the papers' iterations, or a tolerance, leave is no edit.
        allowed = self.lost if self.iterations is not None else max(allowed, 4 * (self.tolerance or 0.0))
        side = x.q.shape[-1]
        if not is_host(x.q):
            size = unscaled(torch.linalg.vector_norm(x.q, dim=(-2, -1), keepdim=True), x.radius)
            excess = hardshrink(size - side**0.5, allowed / 2 * side**0.5)  # 0 where it is a few roundings
            x.q.addcmul_(x.q, excess.div_(size), value=-1)
            return
        q = unscaled(x.q, x.radius)
        whole = q.sum(-1).square().sum(-1, keepdim=True) / side  # of orthogonal columns: their squares, added up
        differs = (torch.cat([q.square().sum(-2), whole], -1) - 1).abs_().amax(-1)[..., None, None] > allowed
        if bool(differs.any()):
            x.q.copy_(torch.where(differs, scaled(nearest(q, "edited weights")[0], x.radius), x.q))
            if x.p is not None and not self._turns(q):
                x.p.copy_(torch.where(differs, self._without_normal_part(x, x.p), x.p))

    def _without_normal_part(self, x: Phase, p: Tensor) -> Tensor:
        p = p.clone()
        self.project_step_(x, p)
        return p

    def project_(self, x: Phase, p: Tensor, slack_p: Tensor | None = None) -> None:
        if self._turns(x.q):
            p.copy_(skew_part(p))
        elif self.iterations is not None:
            self.project_step_(x, p)

    def project_step_(self, x: Phase, step: Tensor) -> None:
        """Π: Z −= Q·sym(QᵀZ)."""
        q = unscaled(x.q, x.radius)
        y = gram(q, step)
        subtract_product_(step, q, (y + y.mT).mul_(0.5))

    def kick_(self, x: Phase, force: Tensor, h: Scalar) -> None:
        if self._turns(x.q):
            force = unscaled(skew_gram(x.q, force), x.radius)
        add_scaled_(x.p, force, -h)
        if self.iterations is not None:
            self.project_step_(x, x.p)

    def drift_(self, x: Phase, h: Scalar) -> bool:
        """Returns whether nothing is left to polish, as after a short step."""
        if x.radius is not None:
            return on_unit_(x, lambda unit: self.drift_(unit, h))
        q, p = x.q, x.p
        time = over(h, q)
        if self._turns(q):
            return self._turn_(q, time * p)
        short = False
        if isinstance(time, float) and time < torch.finfo(q.dtype).tiny:
            pass  # P could not be divided by it
        elif self.iterations is not None:
            start = q + time * p
            moved = self._iterate(q, start)
            p.add_(divided(moved - start, time))
            q.copy_(moved)
        elif not is_host(q):
            short = on_device.rattle_(q, p, time, strips=not self._short_steps)
        elif isinstance(time, Tensor):
            rattle_each_(q, p, time, self._tolerance(q))
        else:
            short = rattle_(q, p, time, self._tolerance(q), may_be_short=self._short_steps)
        if self.iterations is not None:
            self.project_step_(x, p)
        return short

    def descend_(self, x: Phase, force: Tensor, h: Scalar, normals: Normals | None, size: Scalar) -> object:
        if x.radius is not None:
            h, size = over(h, x.q) / x.radius, over(size, x.q) / x.radius
            return on_unit_(x, lambda unit: self.descend_(unit, force, h, normals, size))
        if normals is not None or isinstance(h, Tensor) or self.iterations is not None:
            return super().descend_(x, force, h, normals, size)
        return self._move_(x.q, force, -h)

    def retract_(self, x: Phase, step: Tensor, slack_step: Tensor | None) -> bool:
        if x.radius is not None:
            return on_unit_(x, lambda unit: self.retract_(unit, step / x.radius, None))
        if self.iterations is None:
            return self._move_(x.q, step, 1.0)
        x.q.copy_(self._iterate(x.q, x.q + step))
        return False

    def finish_(self, x: Phase, hint: object, polish: bool) -> None:
        """Polish by a Newton–Schulz step. The multiplier assumes QᵀQ = I, so rounding would accumulate without it."""
        if not polish or hint or self.iterations is not None:
            return
        error = relative_gram_error(x.q, x.radius)
        size = longest_column(error) if is_host(x.q) else math.inf
        change = product_within(x.q, error, size, self._tolerance(x.q))
        if change is not None:
            x.q.sub_(change, alpha=0.5)

    def _turns(self, q: Tensor) -> bool:
        """Whether momenta are kept in the weight's own frame."""
        return self.iterations is None and _square(q)

    def _move_(self, q: Tensor, z: Tensor, scale: float) -> bool:
        """Q ← Q + cZ − QΛ. Returns whether nothing is left to polish."""
        if not _square(q):
            return move_(q, z, scale, self._tolerance(q)) if is_host(q) else on_device.move_(q, z, scale)
        # Of a large matrix, a short step takes half a product less than a turn; blocks are for a CPU alone.
        if is_blocked(q) and move_(q, z, scale, self._tolerance(q), only_short=True):
            return True
        return self._turn_(q, skew_gram(q, z, scale))

    def _turn_(self, q: Tensor, skew: Tensor) -> bool:
        """Q ← Q(I + K + D) for a square Q; K is overwritten."""
        if not is_host(q):
            return on_device.turn_(q, skew)
        d = deviation(skew, None, True, self._tolerance(q))
        # Not in one call: small products would be rounded at the size of Q after every term.
        q.add_(torch.matmul(q, skew if d is None else skew.add_(d)))
        return False

    def _tolerance(self, q: Tensor) -> float:
        """Of one step: what several leave adds up until :meth:`finish_` removes it."""
        return torch.finfo(q.dtype).eps / 8 if self.tolerance is None else self.tolerance / _DRIFTS_BETWEEN

    def _iterate(self, q: Tensor, start: Tensor) -> Tensor:
        """The papers' K quasi-Newton iterations, to the letter (4.55)."""
        moved = start
        for _ in range(self.iterations or 0):
            moved = moved - torch.matmul(q, gram_error(moved) / 2)
        return moved

    def nearest_(self, x: Phase) -> None:
        q = unscaled(x.q, x.radius)
        x.q.copy_(scaled(approach(q), x.radius))

    def move_(self, x: Phase, step: Tensor) -> None:
        self.finish_(x, self.retract_(x, step, None), polish=True)

    def tangent(self, x: Phase) -> list[Tensor]:
        if x.p is None or self.iterations is not None:
            return x.momenta()
        return [skew_part(x.p) if self._turns(x.q) else self._without_normal_part(x, x.p)]

    def residual(self, x: Phase) -> Tensor:
        return self.residuals(x).abs().max()

    def residuals(self, x: Phase) -> Tensor:
        """QᵀQ − I of every block."""
        return relative_gram_error(widened(x.q), x.radius)

    def holds(self, x: Phase, precision: torch.dtype) -> bool:
        if self.iterations is not None:
            return bool(self.residual(x) < self.lost)
        if super().holds(x, precision):
            return True
        return self.tolerance is not None and bool(self.residual(x) <= 2 * self.tolerance)

    def cotangency(self, x: Phase) -> Tensor:
        p = self.tangent(x)[0]
        y = p if self._turns(x.q) else unscaled(gram(x.q, p), x.radius)
        return (y + y.mT).abs().max()

    def degrees_of_freedom(self, q: Tensor) -> int:
        block = self.view(q)
        s = block.shape[-1]
        return q.numel() - block.shape[:-2].numel() * (s * (s + 1) // 2)


def _square(q: Tensor) -> bool:
    return q.shape[-2] == q.shape[-1]
