"""Orthogonal: QᵀQ = I for the tall orientation of a weight (paper eq. 4, Algorithms 1 and 2)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ..errors import ConstraintError, ProjectionError
from ..lists import Scalar, Tensors, add_scaled_, divided, spread
from .base import VIEWS, Constraint, Landing, Phase, as_matrix, check_view

_MOST_ITERATIONS = 300
_ITERATIONS_WITHOUT_SYNC = 12
_POLISH_EVERY = 8


class Orthogonal(Constraint):
    r"""Keep a weight's columns (or rows, if there are fewer of them) orthonormal.

    Q is the *tall* orientation of the weight, r × s with s = min(out, in), and QᵀQ = I_s. Both the
    overdamped step (Algorithm 1) and RATTLE's drift (Algorithm 2) solve for a symmetric Λ with

        Q' = Q + Z − QΛ,   Q'ᵀQ' = I,

    where Z is the step that ignores the constraint. Q'ᵀQ' depends on Z only through the s × s
    matrices Y = QᵀZ and ZᵀZ, so the quasi-Newton iteration (4.55),
    Λ ← Λ + ½(Q'ᵀQ' − I), runs on those: tall products are needed to build them and to apply Λ,
    none in between. For a square weight ZᵀZ = YᵀY and is not needed either.

    - Π:  P ← P − ½Q(PᵀQ + QᵀP)                                        (14), (4.15)
    - A:  Q' as above with Z = hP;  P ← Π_{Q'}(P − QΛ/h)                (RATTLE, 4.56)
    - L:  Q' as above with Z = −h∇L + √(2τh) R                          (4.53)

    Λ takes up whatever symmetric part QᵀZ has, so Q' does not depend on P's normal part, and Π is left out of
    letters that A follows (:attr:`loose`): OBA takes four tall products instead of six.

    Args:
        view: None for matrices; "conv" for (out, in·kh·kw); "batch" for stacks of matrices;
            "batch conv" for stacks of convolutions.
        iterations: K of the papers: exactly that many quasi-Newton iterations, converged or not.
        tolerance: otherwise iterate until max|Q'ᵀQ' − I| is below this (default: a few roundings).
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
        self._tangent = True
        self._loose = copy.copy(self)
        self._loose._tangent = False

    def __repr__(self) -> str:
        return f"Orthogonal(view={self.block_view!r}, iterations={self.iterations}, tolerance={self.tolerance})"

    @property
    def loose(self) -> Constraint:
        return self._loose if self.iterations is None else self  # unconverged, it matters where one starts

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
        moved = (sigma - 1).abs().amax(-1) > (16 if q.dtype.itemsize >= 4 else 2) * torch.finfo(q.dtype).eps
        # What is orthogonal to rounding stays as it is, bit for bit.
        q.copy_(torch.where(moved[..., None, None], (u @ vh).to(q.dtype), q))
        return Landing(int(moved.sum()), moved.numel(), (distance * moved).max().item())

    def kick_(self, phase: Phase, force: Tensors, h: Scalar) -> None:
        add_scaled_(phase.p, force, -h)
        self.project_(phase, phase.p)

    def project_(self, phase: Phase, momenta: Tensors) -> None:
        if not self._tangent:
            return
        for q, p in zip(phase.q, momenta, strict=True):
            _project_(q, p)

    def drift_(self, phase: Phase, h: Scalar) -> None:
        for q, p in zip(phase.q, phase.p, strict=True):
            time = spread(h, q) if isinstance(h, Tensor) else h
            if self.iterations is not None:
                start = q + time * p
                moved = self._iterate(q, start)
                p.add_(divided(moved - start, time))
                q.copy_(moved)
                _project_(q, p)
                continue
            step = time * p
            y = _gram(q, step)
            # What the solve leaves enters P divided by h.
            precision = min(1.0, h) if isinstance(h, float) else 1.0
            multiplier, deviation = self._solve(y, None if _square(q) else _gram(step, step), precision)
            _subtract_product_(step, q, multiplier)
            q.add_(step)
            # RATTLE: P̄ = (Q' − Q)/h. sym(Q'ᵀP̄) = −D/h is known, so its projection needs no product Q'ᵀP̄.
            p.copy_(divided(step, time, p))
            if self._tangent:
                _subtract_product_(p, q, divided(deviation, -time))

    def euler_(self, phase: Phase, step: Tensors) -> None:
        for q, z in zip(phase.q, step, strict=True):
            if self.iterations is not None:
                q.copy_(self._iterate(q, q + z))
                continue
            multiplier, _ = self._solve(_gram(q, z), None if _square(q) else _gram(z, z))
            _subtract_product_(z, q, multiplier)
            q.add_(z)

    def settle_(self, phase: Phase, step: int) -> None:
        """The solve trusts QᵀQ = I; one Newton–Schulz step now and then keeps its rounding from walking away."""
        if self.iterations is not None or step % _POLISH_EVERY:
            return
        for q in phase.q:
            q.sub_(torch.matmul(q, _gram_error(q)), alpha=0.5)

    def _iterate(self, q: Tensor, start: Tensor) -> Tensor:
        """The papers' K quasi-Newton iterations, to the letter (4.55)."""
        moved = start
        for _ in range(self.iterations or 0):
            moved = moved - torch.matmul(q, _gram_error(moved) / 2)
        return moved

    def _solve(self, y: Tensor, zz: Tensor | None, precision: float = 1.0) -> tuple[Tensor, Tensor]:
        """Λ, and D = sym(QᵀQ') − I, from Y = QᵀZ, which is overwritten, and ZᵀZ.

        Split Y = U + K into its symmetric and skew part. Then QᵀQ' = I + K + D with D = U − Λ, and
        Q'ᵀQ' = I becomes 2D + D² + DK − KD − K² + (ZᵀZ − YᵀY) = 0: one small product an iteration,
        without ever adding the I that would cost D its digits.
        """
        skew = (y - y.mT).mul_(0.5)
        constant = torch.matmul(skew, skew).neg_()
        if zz is not None:
            constant += zz
            _subtract_product_(constant, y.mT, y)
        d = constant / -2
        symmetric = y.sub_(skew)

        def violation() -> Tensor:
            if zz is None:  # all matrices are powers of K and commute
                return _plus_product(constant, d, d).add_(d, alpha=2)
            product = torch.matmul(d, d.add(skew, alpha=2))
            return product.add(product.mT).mul_(0.5).add_(constant).add_(d, alpha=2)

        if y.is_cuda:  # asking for the error would stall the device
            for _ in range(_ITERATIONS_WITHOUT_SYNC):
                d.sub_(violation(), alpha=0.5)
            return symmetric.sub_(d), d
        tolerance = (self.tolerance or torch.finfo(y.dtype).eps) * precision
        rate = _largest_norm(skew)
        size = (rate * rate if zz is None else _largest_norm(constant)) / 2
        # An iteration leaves at most this share of the violation; of a square weight DK − KD drops out.
        share = size if zz is None else size + 2 * rate
        if size * share <= tolerance:
            return symmetric.sub_(d), d
        floor = torch.finfo(y.dtype).eps * (size + rate) / 4  # rounding leaves this much whatever is asked for
        for _ in range(_MOST_ITERATIONS):
            correction = violation()
            error = _largest_entry(correction)
            if not error < 10:
                break
            d.sub_(correction, alpha=0.5)
            if error * min(1.0, share) <= max(tolerance, floor):  # what the next one would find at most
                return symmetric.sub_(d), d
        raise ProjectionError(
            f"the projection onto orthogonal matrices did not converge: the step turns the weights by {rate:.2g} and "
            f"stretches them by {size:.2g} (Frobenius norms; it always works when they add up to less than 0.5). "
            f"Lower lr, clip the gradient, or add friction"
        )

    def residual(self, phase: Phase) -> Tensor:
        blocks = [q.float() if q.dtype.itemsize < 4 else q for q in phase.q]
        return torch.stack([_gram_error(q).abs().max() for q in blocks]).max()

    def holds(self, phase: Phase) -> bool:
        return super().holds(phase) if self.iterations is None else bool(self.residual(phase) < self.lost)

    def cotangency(self, phase: Phase) -> Tensor:
        worst = []
        for q, p in zip(phase.q, phase.p, strict=True):
            y = _gram(q, p)
            worst.append((y + y.mT).abs().max())
        return torch.stack(worst).max()

    def degrees_of_freedom(self, q: Tensor) -> int:
        block = self.view(q)
        s = block.shape[-1]
        return q.numel() - block.shape[:-2].numel() * (s * (s + 1) // 2)


def _square(q: Tensor) -> bool:
    return q.shape[-2] == q.shape[-1]


def _gram(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a.mT, b)


def _gram_error(q: Tensor) -> Tensor:
    """QᵀQ − I."""
    error = _gram(q, q)
    error.diagonal(dim1=-2, dim2=-1).sub_(1)
    return error


def _largest_entry(a: Tensor) -> float:
    """max |a|; NaN if there is one."""
    least, most = torch.aminmax(a)
    return max(-float(least), float(most))


def _largest_norm(a: Tensor) -> float:
    return float(torch.linalg.vector_norm(a, dim=(-2, -1)).max())


def _plus_product(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a + b·c, in one call where torch has one."""
    if a.ndim == 2:
        return torch.addmm(a, b, c)
    return torch.baddbmm(a, b, c) if a.ndim == 3 else a + torch.matmul(b, c)


def _subtract_product_(a: Tensor, q: Tensor, small: Tensor) -> None:
    """a −= q·small, in one call and without a copy where torch has one."""
    if q.ndim == 2:
        a.addmm_(q, small, alpha=-1)
    elif q.ndim == 3:
        a.baddbmm_(q, small, alpha=-1)
    else:
        a.sub_(torch.matmul(q, small))


def _project_(q: Tensor, p: Tensor) -> None:
    """Π: P −= Q·sym(QᵀP)."""
    y = _gram(q, p)
    _subtract_product_(p, q, (y + y.mT).mul_(0.5))
