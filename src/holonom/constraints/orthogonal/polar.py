"""The nearest orthogonal matrix: the polar factor UVᵀ of Q = UΣVᵀ."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._devices import is_host
from ...errors import ConstraintError
from .matmul import gram_error

NEAR = 0.5  # |QᵀQ − I|, Frobenius, up to which iterations on a CPU take less time than a decomposition
HOST_ITERATIONS = 12
DEVICE_ITERATIONS = 14  # a singular value grows by up to 15/8 each: enough for those above 1e-3 of the largest


def nearest(q: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The nearest orthogonal matrix, and the singular values of Q."""
    u, sigma, vh = torch.linalg.svd(q.double(), full_matrices=False)
    if bool((sigma[..., -1] <= 1e-12 * sigma[..., 0]).any()):
        raise ConstraintError(
            f"Orthogonal on {name}: the weight is rank-deficient, its nearest orthogonal matrix is not unique; "
            f"initialise it with holonom.init.orthogonal_"
        )
    return (u @ vh).to(q.dtype), sigma


def approach(q: Tensor) -> Tensor:
    """The nearest orthogonal matrix to rounding, by Q ← Q(I − ½E + ⅜E²) with E = QᵀQ − I, which leaves O(E³).

    On a CPU it ends when E is at rounding; from far away, or without convergence, :func:`nearest` is taken. A device is
    not asked: a fixed number of iterations, from Q scaled so that no singular value is above 3/2, where they converge.
    """
    on_host = is_host(q)
    start = q
    if not on_host:
        bound = (gram_error(q).abs().sum(-1).amax(-1) + 1).sqrt()[..., None, None]  # of the largest singular value
        q = q / (bound / 1.5).clamp_min(1.0)
    for _ in range(HOST_ITERATIONS if on_host else DEVICE_ITERATIONS):
        error = gram_error(q)
        size = float(torch.linalg.vector_norm(error, dim=(-2, -1)).max()) if on_host else 0.0
        if on_host and not size <= NEAR:
            return nearest(start, "a moved weight")[0]
        q = q - torch.matmul(q, error.div(2).sub_(torch.matmul(error, error), alpha=0.375))
        if on_host and size**3 <= torch.finfo(q.dtype).eps:
            return q
    return q
