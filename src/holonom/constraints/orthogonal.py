"""Orthogonal: QᵀQ = I for the tall orientation of a weight (paper eq. 4, Algorithms 1 and 2)."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from ..errors import ConstraintError
from ..lists import Scalar, Tensors, add_scaled_, divided, spread
from .base import VIEWS, Constraint, Landing, Phase, as_matrix, check_view
from .deviation import deviation
from .multiply import product
from .products import (
    exact_gram_error,
    gram,
    gram_error,
    is_blocked,
    longest_column,
    product_within,
    skew_gram,
    skew_part,
    subtract_product_,
)
from .slide import rattle_, rattle_each_, slide_

_POLISH_EVERY = 13  # a prime: weights that move at every second or fifth step only get their turn, too
_DRIFTS_BETWEEN = 64  # polishes, at most: those of BAAOAAB and some to spare
_ACROSS = 0.5  # of a gradient's columns, about, points off the manifold


class Orthogonal(Constraint):
    r"""Keep a weight's columns (or rows, if there are fewer of them) orthonormal.

    Q is the *tall* orientation of the weight, r × s with s = min(out, in), and QᵀQ = I_s. Both the
    overdamped step (Algorithm 1) and RATTLE's drift (Algorithm 2) solve for a symmetric Λ with

        Q' = Q + Z − QΛ,   Q'ᵀQ' = I,

    where Z is the step that ignores the constraint. Q'ᵀQ' depends on Z only through the s × s
    matrices Y = QᵀZ and ZᵀZ, so the quasi-Newton iteration (4.55),
    Λ ← Λ + ½(Q'ᵀQ' − I), runs on those (:mod:`.deviation`): tall products are needed to build them and to apply Λ,
    none in between.

    - Π:  P ← P − ½Q(PᵀQ + QᵀP)                                        (14), (4.15)
    - A:  Q' as above with Z = hP;  P ← Π_{Q'}(P − QΛ/h)                (RATTLE, 4.56)
    - L:  Q' as above with Z = −h∇L + √(2τh) R                          (4.53)

    Λ takes up whatever symmetric part QᵀZ has, so Q' does not depend on P's normal part, and no letter of a step needs
    Π. The state is ``chord``, the last drift's (Q' − Q)/h and what letters added to it since; the momentum is its
    tangent part, Π·chord, and :meth:`holonom.Langevin.synchronize` leaves just that. A short step takes
    one symmetric product and one more (:mod:`.slide`).

    A square weight has no directions but those it turns in. Its state is ``spin``, the skew matrix Ω = QᵀP, and
    noise is drawn in the weight's own frame, where it has the same law:

    - B:  Ω ← Ω − h skew(Qᵀ∇L)
    - O:  Ω ← e^{−γh} Ω + √(τ(1−e^{−2γh})) skew(R)
    - A:  Q ← Q(I + K + D) with K = hΩ and D = √(I + K²) − I;  Ω stays:  Q'ᵀ(Q' − Q)/h = (K − D)/h, and D is symmetric

    which is the same RATTLE step in two products and what D takes, which for short steps is nothing.

    Args:
        view: None for matrices; "conv" for (out, in·kh·kw); "batch" for stacks of matrices;
            "batch conv" for stacks of convolutions.
        iterations: K of the papers: exactly that many quasi-Newton iterations, converged or not.
        tolerance: otherwise iterate until max|Q'ᵀQ' − I| stays below this (default: a few roundings).
    """

    stacks = True
    fusible = False
    geodesic = False
    elementwise = False

    def __init__(self, view: str | None = None, iterations: int | None = None, tolerance: float | None = None) -> None:
        if view not in VIEWS:
            raise ConstraintError(f"Orthogonal: view must be one of {VIEWS}, got {view!r}")
        if iterations is not None and (not isinstance(iterations, int) or iterations < 1):
            raise ConstraintError(f"Orthogonal: iterations must be a whole number of at least 1, got {iterations!r}")
        if tolerance is not None and not 0 < tolerance < 1:
            raise ConstraintError(f"Orthogonal: tolerance must lie between 0 and 1, got {tolerance!r}")
        if iterations is not None and tolerance is not None:
            raise ConstraintError("Orthogonal: give iterations (a fixed K) or a tolerance, not both")
        self.block_view = view
        self.iterations = iterations
        self.tolerance = tolerance
        if iterations is not None:  # K iterations leave what they leave
            self.lost = 0.5
        elif tolerance is not None:
            self.lost = max(self.lost, 2 * tolerance)
        self._tangent = True
        self._rounded = False
        self._put_right: set[int] | None = None  # during a step: the ids of weights whose last move was a short one

    def __repr__(self) -> str:
        return f"Orthogonal(view={self.block_view!r}, iterations={self.iterations}, tolerance={self.tolerance})"

    @property
    def loose(self) -> Constraint:
        if self.iterations is not None or not self._tangent:  # unconverged, it matters where one starts
            return self
        other = copy.copy(self)
        other._tangent = False
        other._put_right = set()
        return other

    @property
    def rounded(self) -> Constraint:
        other = copy.copy(self)
        other._rounded = True
        return other

    def momentum_name(self, q: Tensor) -> str:
        if self.iterations is not None:
            return "momentum"
        return "spin" if _square(self.view(q)) else "chord"

    def view(self, q: Tensor) -> Tensor:
        matrix = as_matrix(q, self.block_view)
        return matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT

    def check(self, q: Tensor, name: str) -> None:
        if q.ndim < 2:
            raise ConstraintError(
                f"Orthogonal on {name} of shape {tuple(q.shape)}: only matrices can be orthogonal; leave biases "
                f"and norm weights in a group without a constraint (holonom.partition does that)"
            )
        check_view(q, name, self.block_view, "Orthogonal")

    def land_(self, q: Tensor, name: str) -> Landing:
        exact = q.double()
        u, sigma, vh = torch.linalg.svd(exact, full_matrices=False)
        if bool((sigma[..., -1] <= 1e-12 * sigma[..., 0]).any()):
            raise ConstraintError(
                f"Orthogonal on {name}: the weight is rank-deficient, its nearest orthogonal matrix is not unique; "
                f"initialise it with holonom.init.orthogonal_"
            )
        distance = torch.linalg.vector_norm(sigma - 1, dim=-1)
        rounding = (16 if q.dtype.itemsize >= 4 else 2) * torch.finfo(q.dtype).eps
        rounding += math.sqrt(q.shape[-2]) * torch.finfo(exact.dtype).eps  # the decomposition's own
        moved = (sigma - 1).abs().amax(-1) > rounding
        # What is orthogonal to rounding stays as it is, bit for bit.
        q.copy_(torch.where(moved[..., None, None], (u @ vh).to(q.dtype), q))
        return Landing(int(moved.sum()), moved.numel(), (distance * moved).max().item())

    def kick_(self, phase: Phase, force: Tensors, h: Scalar) -> None:
        if self._turns(phase.q[0]):  # tensors handed over together are of one shape
            add_scaled_(phase.p, [skew_gram(q, g) for q, g in zip(phase.q, force, strict=True)], -h)
        else:
            add_scaled_(phase.p, force, -h)
            self.project_(phase, phase.p)

    def project_(self, phase: Phase, momenta: Tensors) -> None:
        for q, p in zip(phase.q, momenta, strict=True):
            if self._turns(q):
                p.copy_(skew_part(p))
            elif self._tangent:
                _project_(q, p)

    def drift_(self, phase: Phase, h: Scalar) -> None:
        for q, p in zip(phase.q, phase.p, strict=True):
            time = spread(h, q) if isinstance(h, Tensor) else h
            if self._turns(q):
                self._turn_(q, time * p)
                continue
            if isinstance(time, Tensor) or time >= torch.finfo(q.dtype).tiny:  # P could not be divided by less
                self._rattle_(q, p, time)
            if self._tangent:
                _project_(q, p)

    def _rattle_(self, q: Tensor, p: Tensor, time: Scalar) -> None:
        """Q' from Z = hP, and P̄ = (Q' − Q)/h, which leans off the tangent space at Q'."""
        if self.iterations is not None:
            start = q + time * p
            moved = self._iterate(q, start)
            p.add_(divided(moved - start, time))
            q.copy_(moved)
        elif isinstance(time, Tensor):
            rattle_each_(q, p, time, self._tolerance(q))
            self._note(q, short=False)
        else:
            self._note(q, rattle_(q, p, time, self._tolerance(q), may_be_short=not self._rounded))

    def descend_(self, phase: Phase, force: Tensors, h: Scalar, noise: Tensors, amplitude: Scalar) -> None:
        if noise or isinstance(h, Tensor) or self.iterations is not None:
            super().descend_(phase, force, h, noise, amplitude)
            return
        for q, g in zip(phase.q, force, strict=True):
            self._move_(q, g, -h)

    def euler_(self, phase: Phase, step: Tensors) -> None:
        for q, z in zip(phase.q, step, strict=True):
            if self.iterations is not None:
                q.copy_(self._iterate(q, q + z))
            else:
                self._move_(q, z, 1.0)

    def _turns(self, q: Tensor) -> bool:
        """Whether momenta are kept in the weight's own frame."""
        return self.iterations is None and _square(q)

    def _move_(self, q: Tensor, z: Tensor, scale: float) -> None:
        """Q ← Q + cZ − QΛ."""
        if not _square(q):
            short = slide_(q, z, scale, self._tolerance(q), _ACROSS)
        else:
            # Of a large matrix, that is half a product less than a turn takes.
            may_be_short = is_blocked(q.shape) and not q.is_cuda
            short = may_be_short and slide_(q, z, scale, self._tolerance(q), _ACROSS, only_short=True)
            if not short:
                self._turn_(q, skew_gram(q, z, scale))
        self._note(q, short)

    def _note(self, q: Tensor, short: bool) -> None:
        """A short step removes what earlier ones left, so that there is nothing to polish behind it."""
        if self._put_right is None:
            return
        if short:
            self._put_right.add(id(q))
        else:
            self._put_right.discard(id(q))

    def _turn_(self, q: Tensor, skew: Tensor) -> None:
        """Q ← Q(I + K + D) for a square Q; K is overwritten."""
        d = deviation(skew, None, True, self._tolerance(q))
        # Not in one call: small products would be rounded at the size of Q after every term.
        q.add_(product(q, skew if d is None else skew.add_(d)))

    def _tolerance(self, q: Tensor) -> float:
        """Of one step: what several leave adds up until :meth:`settle_` removes it."""
        return torch.finfo(q.dtype).eps / 8 if self.tolerance is None else self.tolerance / _DRIFTS_BETWEEN

    def settle_(self, phase: Phase, step: int) -> None:
        """The solve trusts QᵀQ = I; one Newton–Schulz step now and then keeps its rounding from walking away."""
        if self.iterations is not None or step % _POLISH_EVERY:
            return
        for q in phase.q:
            if self._put_right and id(q) in self._put_right:
                continue
            error = exact_gram_error(q)
            size = torch.inf if q.is_cuda else longest_column(error)
            change = product_within(q, error, size, self._tolerance(q))
            if change is not None:
                q.sub_(change, alpha=0.5)

    def _iterate(self, q: Tensor, start: Tensor) -> Tensor:
        """The papers' K quasi-Newton iterations, to the letter (4.55)."""
        moved = start
        for _ in range(self.iterations or 0):
            moved = moved - torch.matmul(q, gram_error(moved) / 2)
        return moved

    def residual(self, phase: Phase) -> Tensor:
        blocks = [q.float() if q.dtype.itemsize < 4 else q for q in phase.q]
        return torch.stack([exact_gram_error(q).abs().max() for q in blocks]).max()

    def holds(self, phase: Phase, precision: torch.dtype) -> bool:
        if self.iterations is not None:
            return bool(self.residual(phase) < self.lost)
        if super().holds(phase, precision):
            return True
        return self.tolerance is not None and bool(self.residual(phase) <= 2 * self.tolerance)

    def cotangency(self, phase: Phase) -> Tensor:
        worst = []
        for q, p in zip(phase.q, self.tangent(phase), strict=True):
            y = p if self._turns(q) else gram(q, p)
            worst.append((y + y.mT).abs().max())
        return torch.stack(worst).max()

    def degrees_of_freedom(self, q: Tensor) -> int:
        block = self.view(q)
        s = block.shape[-1]
        return q.numel() - block.shape[:-2].numel() * (s * (s + 1) // 2)


def _square(q: Tensor) -> bool:
    return q.shape[-2] == q.shape[-1]


def _project_(q: Tensor, p: Tensor) -> None:
    """Π: P −= Q·sym(QᵀP)."""
    y = gram(q, p)
    subtract_product_(p, q, (y + y.mT).mul_(0.5))
