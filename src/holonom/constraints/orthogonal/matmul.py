"""Products of matrices and of stacks of them; large symmetric ones at half the work."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..._devices import is_host

_BLOCKED, _BLOCKS = 256, 4  # side from which a symmetric product is put together from blocks, and how many a side
_LONG = 512  # side of a matrix whose transpose is copied before it is subtracted


def is_blocked(a: Tensor) -> bool:
    """Whether a symmetric product of so many rows takes less time than another."""
    return a.ndim == 2 and a.shape[0] >= _BLOCKED and is_host(a)


def symmetric_product(a: Tensor, b: Tensor) -> Tensor:
    """a·b where that is symmetric: of a large matrix, the blocks above the diagonal are copies of those below."""
    if not is_blocked(a) or a.requires_grad or b.requires_grad:  # autograd cannot follow what is written into place
        return torch.matmul(a, b)
    side = a.shape[0]
    whole = a.new_empty(side, side)
    block = math.ceil(side / _BLOCKS)
    for start in range(0, side, block):
        end = min(start + block, side)
        torch.mm(a[start:], b[:, start:end], out=whole[start:, start:end])
        whole[start:end, end:] = whole[end:, start:end].mT
    return whole


def product_within(a: Tensor, b: Tensor, size: float, tolerance: float, symmetric: bool = False) -> Tensor | None:
    """a·b, or None where ``size`` ≥ |aᵢ||bⱼ| says that 0 is within ``tolerance``."""
    if size <= tolerance:
        return None
    if symmetric:
        return symmetric_product(a, b)
    if _is_transposed(a):  # so that the product has the memory layout of its first factor
        return torch.matmul(b.mT, a.mT).mT
    return torch.matmul(a, b)


def gram(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a.mT, b)


def gram_error(q: Tensor) -> Tensor:
    """QᵀQ − I."""
    error = symmetric_product(q.mT, q)
    error.diagonal(dim1=-2, dim2=-1).sub_(1)
    return error


def exact_gram_error(q: Tensor) -> Tensor:
    """The same in double precision, where there is one: sums of many products are off by several roundings."""
    return gram_error(q if q.device.type == "mps" else q.double()).to(q.dtype)


def skew_part(y: Tensor) -> Tensor:
    """(Y − Yᵀ)/2."""
    return _less_transpose(y).mul_(0.5)


def skew_gram(a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
    """c·(AᵀB − BᵀA)/2."""
    return _less_transpose(scaled_product(a.mT, b, scale / 2))


def _less_transpose(y: Tensor) -> Tensor:
    large = y.ndim == 2 and y.shape[-1] >= _LONG and is_host(y)
    return y - (y.mT.contiguous() if large else y.mT)


def scaled_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """c·A·B, scaled on its way to memory where torch can."""
    if a.ndim > 3:
        return torch.matmul(a, b).mul_(scale)
    join = torch.addmm if a.ndim == 2 else torch.baddbmm
    return join(a.new_empty(1), a, b, beta=0, alpha=scale)


def plus_product(a: Tensor, b: Tensor, c: Tensor, alpha: float = 1.0) -> Tensor:
    """a + α b·c, in one call where torch has one."""
    if a.ndim > 3:
        return a.add(torch.matmul(b, c), alpha=alpha)
    return torch.addmm(a, b, c, alpha=alpha) if a.ndim == 2 else torch.baddbmm(a, b, c, alpha=alpha)


def scaled_less_product(z: Tensor, scale: float, a: Tensor, b: Tensor) -> Tensor:
    """c·Z − A·B, in one call where torch has one, with the memory layout of Z."""
    if _is_transposed(z):
        return scaled_less_product(z.mT, scale, b.mT, a.mT).mT
    if a.ndim > 3:
        return torch.matmul(a, b).neg_().add_(z, alpha=scale)
    join = torch.addmm if a.ndim == 2 else torch.baddbmm
    return join(z, a, b, beta=scale, alpha=-1)


def subtract_product_(z: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> None:
    """Z −= c·A·B, in one call and without a copy where torch has one."""
    if _is_transposed(z):
        subtract_product_(z.mT, b.mT, a.mT, scale)
    elif a.ndim > 3:
        z.sub_(torch.matmul(a, b), alpha=scale)
    elif a.ndim == 2:
        z.addmm_(a, b, alpha=-scale)
    else:
        z.baddbmm_(a, b, alpha=-scale)


def _is_transposed(a: Tensor) -> bool:
    return a.stride(-2) == 1 and a.stride(-1) != 1


def longest_column(a: Tensor) -> float:
    """The largest norm of a column of any matrix."""
    if a.stride(-2) == 1:
        return float(torch.linalg.vector_norm(a, dim=-2).max())
    return math.sqrt(float(a.square().sum(-2).max()))  # a norm across rows takes twenty times as long


def longest_and_norm(a: Tensor) -> tuple[float, float]:
    """The largest norm of a row, and of a whole matrix."""
    rows = torch.linalg.vector_norm(a, dim=-1)
    return float(rows.max()), float(torch.linalg.vector_norm(rows, dim=-1).max())


def largest_entry(a: Tensor) -> float:
    """max |a|; NaN if there is one."""
    least, most = torch.aminmax(a)
    return max(-float(least), float(most))
