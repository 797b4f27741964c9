"""Products of matrices and of stacks of them, some only as exact as they need to be."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from .multiply import product, suits_onednn

_COARSE = torch.bfloat16
_COARSE_ERROR = 2.0**-6  # of a product, as a share of |aᵢ||bⱼ|: 2⁻⁸ for each factor and the result, and one to spare
_COARSE_PAYS = 6_000_000  # multiplications, below which rounding the factors takes longer than it saves
_BLOCKED, _BLOCKS = 256, 4  # side from which a symmetric product is put together from blocks, and how many a side
_LONG = 512  # side of a matrix whose transpose is better written out before it is subtracted


def product_within(a: Tensor, b: Tensor, size: float, tolerance: float, symmetric: bool = False) -> Tensor | None:
    """a·b, every entry to within ``tolerance``, where ``size`` ≥ |aᵢ||bⱼ| bounds them all; None where 0 is as good.

    Where the tolerance allows for it and the processor has instructions for it, the product is taken in bfloat16,
    which takes less than half the time; one known to be ``symmetric`` takes two thirds of it.
    """
    if size <= tolerance:
        return None
    if size * _COARSE_ERROR <= tolerance and coarse_is_faster(a, b):
        a, b = _rounded(a, b)
    if symmetric:
        return symmetric_product(a, b)
    if a.stride(-2) == 1 and a.stride(-1) != 1:  # so that the product lies in memory as its first factor does
        return product(b.mT, a.mT).mT
    return product(a, b)


def _rounded(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    coarse = a.to(_COARSE)
    if b is a:
        return coarse, coarse
    if b.data_ptr() == a.data_ptr() and b.shape == a.mT.shape and b.stride() == a.mT.stride():
        return coarse, coarse.mT
    return coarse, b.to(_COARSE)


def coarse_is_faster(a: Tensor, b: Tensor) -> bool:
    large = a.numel() * b.shape[-1] >= _COARSE_PAYS
    return large and a.dtype == torch.float32 and not a.is_cuda and has_coarse_instructions()


@cache
def has_coarse_instructions() -> bool:
    ask = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # not in every torch
    return ask is not None and torch.backends.mkldnn.is_available() and bool(ask())  # type: ignore[no-untyped-call]


def symmetric_product(a: Tensor, b: Tensor) -> Tensor:
    """a·b where that is symmetric: of a large matrix, the blocks above the diagonal are copies of those below."""
    side = a.shape[-2]
    if not is_blocked(a.shape) or a.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return torch.matmul(a, b)
    whole = a.new_empty(side, side)
    block = math.ceil(side / _BLOCKS)
    for start in range(0, side, block):
        end = min(start + block, side)
        torch.mm(a[start:], b[:, start:end], out=whole[start:, start:end])
        whole[start:end, end:] = whole[end:, start:end].mT
    return whole


def is_blocked(shape: torch.Size) -> bool:
    """Whether a symmetric product of so many rows takes less time than another."""
    return len(shape) == 2 and shape[0] >= _BLOCKED


def gram(a: Tensor, b: Tensor) -> Tensor:
    return product(a.mT, b)


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


def scaled_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """c·A·B, scaled on its way to memory where torch can."""
    if a.ndim > 3 or suits_onednn(a, b):
        return product(a, b).mul_(scale)
    join = torch.addmm if a.ndim == 2 else torch.baddbmm
    return join(a.new_empty(1), a, b, beta=0, alpha=scale)


def _less_transpose(y: Tensor) -> Tensor:
    return y - (y.mT.contiguous() if y.ndim == 2 and y.shape[-1] >= _LONG and not y.is_cuda else y.mT)


def plus_product(a: Tensor, b: Tensor, c: Tensor, alpha: float = 1.0) -> Tensor:
    """a + α b·c, in one call where torch has one."""
    if a.ndim == 2:
        return torch.addmm(a, b, c, alpha=alpha)
    return torch.baddbmm(a, b, c, alpha=alpha) if a.ndim == 3 else a.add(torch.matmul(b, c), alpha=alpha)


def scaled_less_product(z: Tensor, scale: float, a: Tensor, b: Tensor) -> Tensor:
    """c·Z − A·B, in one call where torch has one, lying in memory as Z does."""
    if z.stride(-2) == 1 and z.stride(-1) != 1:
        return scaled_less_product(z.mT, scale, b.mT, a.mT).mT
    if a.ndim > 3 or suits_onednn(a, b):
        return _negative_product(a, b).add_(z, alpha=scale)
    join = torch.addmm if a.ndim == 2 else torch.baddbmm
    return join(z, a, b, beta=scale, alpha=-1)


def _negative_product(a: Tensor, b: Tensor) -> Tensor:
    return product(-a, b) if a.numel() < b.numel() else product(a, -b)


def subtract_product_(z: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> None:
    """Z −= c·A·B, in one call and without a copy where torch has one."""
    if z.stride(-2) == 1 and z.stride(-1) != 1:
        subtract_product_(z.mT, b.mT, a.mT, scale)
    elif a.ndim > 3 or suits_onednn(a, b):
        z.sub_(product(a, b), alpha=scale)
    elif a.ndim == 2:
        z.addmm_(a, b, alpha=-scale)
    else:
        z.baddbmm_(a, b, alpha=-scale)


def longest_column(a: Tensor) -> float:
    """The largest norm of a column of any matrix."""
    if a.stride(-2) == 1:
        return float(torch.linalg.vector_norm(a, dim=-2).max())
    return math.sqrt(float(a.square().sum(-2).max()))  # against the grain, a norm takes twenty times as long


def longest_and_norm(a: Tensor) -> tuple[float, float]:
    """The largest norm of a row, and of a whole matrix."""
    rows = torch.linalg.vector_norm(a, dim=-1)
    return float(rows.max()), float(torch.linalg.vector_norm(rows, dim=-1).max())


def largest_entry(a: Tensor) -> float:
    """max |a|; NaN if there is one."""
    least, most = torch.aminmax(a)
    return max(-float(least), float(most))
