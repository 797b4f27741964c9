"""The nearest orthogonal matrix: the polar factor UVᵀ of Q = UΣVᵀ."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._devices import is_host
from ...errors import ConstraintError
from ..matrices import decomposed
from .matmul import gram_error, plus_product, scaled_product, subtract_product_
from .on_device import digits_for, exact_dtype

NEAR = 0.5  # |QᵀQ − I|, Frobenius, up to which iterations on a CPU take less time than a decomposition
HOST_ITERATIONS = 12
DEVICE_ITERATIONS = 12  # a singular value grows by up to 15/8 each: enough for those above 1e-3 of the bound on all


def nearest(q: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The nearest orthogonal matrix, and the singular values of Q."""
    u, sigma, vh = decomposed(q.double(), f"Orthogonal on {name}")
    if bool((sigma[..., -1] <= 1e-12 * sigma[..., 0]).any()):
        raise ConstraintError(
            f"Orthogonal on {name}: the weight is rank-deficient, its nearest orthogonal matrix is not unique; "
            f"initialise it with holonom.init.orthogonal_"
        )
    return (u @ vh).to(q.dtype), sigma


def approach(q: Tensor) -> Tensor:
    """The nearest orthogonal matrix to rounding, by Q ← Q(I − ½E + ⅜E²) with E = QᵀQ − I, which leaves O(E³).

    On a CPU it ends when E is at rounding; from far away, or without convergence, :func:`nearest` is taken.
    """
    if not is_host(q):
        return _approach_on_device(q)
    start = q
    for _ in range(HOST_ITERATIONS):
        error = gram_error(q)
        size = float(torch.linalg.vector_norm(error, dim=(-2, -1)).max())
        if not size <= NEAR:
            return nearest(start, "a moved weight")[0]
        q = q - torch.matmul(q, _factor(error, torch.matmul(error, error)))
        if size**3 <= torch.finfo(q.dtype).eps:
            return q
    return q


def _approach_on_device(q: Tensor) -> Tensor:
    """The same where nothing is read: a fixed number of iterations, from Q scaled to singular values of 3/2 at most.

    All factors are polynomials of the first E, so the next E is a polynomial of the last one,
    E³(⅝ − 15/64 E + 9/64 E²), and iterations need s × s products alone. Those may have few digits: what they leave is
    measured, and removed by one iteration more.
    """
    wide = q.to(exact_dtype(q.device, q.dtype))
    error = gram_error(wide)
    bound = (error.abs().sum(-1).amax(-1) + 1).sqrt()[..., None, None]  # of the largest singular value
    scale = (1.5 / bound).clamp_max(1.0)
    wide, error = wide * scale, error * scale.square()
    error.diagonal(dim1=-2, dim2=-1).add_(scale.squeeze(-1).square() - 1)
    error = error.to(q.dtype)
    with digits_for(q):
        factor = torch.zeros_like(error)  # less I
        for _ in range(DEVICE_ITERATIONS):
            squared = torch.matmul(error, error)
            step = squared.sub(error, alpha=4 / 3)  # times 3/8
            before, factor = factor, factor.add(step, alpha=3 / 8)
            subtract_product_(factor, before, step, -3 / 8)
            cubed = scaled_product(squared, error, 5 / 8)
            error = plus_product(cubed, cubed, squared.sub_(error, alpha=5 / 3), alpha=9 / 40)
    wide = plus_product(wide, wide, factor.to(wide.dtype))
    error = gram_error(wide).to(q.dtype)
    with digits_for(q):  # E is small by now
        step = _factor(error, torch.matmul(error, error))
    return plus_product(wide, wide, step.to(wide.dtype), alpha=-1.0).to(q.dtype)


def _factor(error: Tensor, squared: Tensor) -> Tensor:
    """½E − ⅜E²."""
    return error.div(2).sub_(squared, alpha=0.375)
