"""Steps on a device. They read nothing back, so the amount of work is fixed.

With M = Q + Z, the condition (M − QΛ)ᵀ(M − QΛ) = I reads

    2Λ + ΛY + YᵀΛ − Λ² = E,   Y = QᵀZ,   E = MᵀM − I.

With Y = S + K (symmetric and skew part) and Λ = S − D it is the equation of :mod:`.multiplier`,

    2D + D² + DK − KD + C = 0,   C = E − 2S − S² − SK + KS.

*Correcting* steps multiply MᵀM in double precision, where the device is as fast at it. E then contains the error
δ = QᵀQ − I of earlier steps, so Λ removes it, but for terms of size |δΛ| that the next step removes: nothing is left to
polish. Λ depends on errors of Y, and of the s × s products, to second order only. E and QΛ need all digits; the others
do not, and on tensor cores products of few digits take a sixth of the time.

*Trusting* steps take δ for 0: E = 2S + ZᵀZ. They are polished now and then, like those of a CPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor

from ..._torch import few_digits
from .matmul import gram, gram_error, plus_product, scaled_less_product, skew_part, subtract_product_

FAST_DOUBLE = {(8, 0), (9, 0), (10, 0)}  # compute capabilities whose tensor cores multiply in double precision
FEW_DIGITS = 256  # sides from which products of few digits are used: relative errors of an entry fall with √side
ITERATIONS = 12  # of trusting steps; n leave about |K|ⁿ⁺³/2 of a step that turns weights by |K|
CORRECTED_ITERATIONS = 6  # 3e-7 at |K| = 0.2; the next step removes it


@cache
def exact_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """The type of products that need all digits."""
    if device.type != "cuda" or dtype != torch.float32:
        return dtype
    return torch.float64 if torch.cuda.get_device_capability(device) in FAST_DOUBLE else dtype


def corrects(q: Tensor) -> bool:
    """Whether steps measure QᵀQ with more digits than Q has."""
    return exact_dtype(q.device, q.dtype) != q.dtype


def move_(q: Tensor, z: Tensor) -> bool:
    """Q ← Q + Z − QΛ. Returns whether nothing is left to polish."""
    if not corrects(q):
        q.add_(_trusting_change(q, z))
        return False
    moved, _ = _corrected(q, z)
    q.copy_(moved)
    return True


def rattle_(q: Tensor, p: Tensor, h: float | Tensor, strips: bool) -> bool:
    """The same with Z = hP, and P ← (Q' − Q)/h. Returns whether nothing is left to polish.

    What removes δ is a normal momentum −Qδ/(2h). The next drift removes that again, but for |δ|/2 of P.
    ``strips``: δ may be more than roundings, so it is kept out of P, as well as few digits tell what it is.
    """
    z = h * p
    if not corrects(q):
        change = _trusting_change(q, z)
        q.add_(change)
    else:
        moved, removed = _corrected(q, z, strips)
        change = torch.sub(moved, q, out=z)  # in double precision, then rounded
        q.copy_(moved)
        if removed is not None:
            change.add_(removed)
    p.copy_(torch.where(h == 0, p, change / h) if isinstance(h, Tensor) else change.div_(h))
    return corrects(q)


def turn_(q: Tensor, skew: Tensor) -> bool:
    """Q ← Q(I + K + D − ½δ) for a square Q, D = √(I + K²) − I. Returns whether nothing is left to polish."""
    with digits_for(q):
        start = torch.matmul(skew, skew).mul_(0.5)
        d = start
        for _ in range(_iterations(q)):
            d = plus_product(start, d, d, alpha=-0.5)
    change = skew + d
    if not corrects(q):
        q.add_(torch.matmul(q, change))
        return False
    wide = q.to(exact_dtype(q.device, q.dtype))
    change.sub_(gram_error(wide), alpha=0.5)
    q.copy_(plus_product(wide, wide, change.to(wide.dtype)))
    return True


def exact_skew_gram(q: Tensor, z: Tensor, scale: float = 1.0) -> Tensor:
    """c·(QᵀZ − ZᵀQ)/2 with all digits."""
    exact = exact_dtype(q.device, q.dtype)
    return skew_part(gram(q.to(exact), z.to(exact)).to(q.dtype)).mul_(scale)


def _trusting_change(q: Tensor, z: Tensor) -> Tensor:
    """Z − QΛ. Along QS, S symmetric, a step multiplies δ by 1 + 2|S|, so S is removed first."""
    y = gram(q, z)
    z = scaled_less_product(z, 1.0, q, (y + y.mT).mul_(0.5))
    y = gram(q, z)
    error = gram(z, z).add_(y).add_(y.mT)
    return scaled_less_product(z, 1.0, q, _multiplier(y, error)[0])


def _corrected(q: Tensor, z: Tensor, with_removed: bool = False) -> tuple[Tensor, Tensor | None]:
    """Q' in double precision and, if it is wanted, ½Qδ of the error that it does not have any more."""
    wide = q.to(exact_dtype(q.device, q.dtype))
    moved, removed = wide + z, None
    error = gram_error(moved).to(q.dtype)
    with digits_for(q):
        multiplier, normal = _multiplier(gram(q, z), error)
        if with_removed:
            delta = error.sub(normal, alpha=2).sub_(gram(z, z))
            removed = torch.matmul(q, delta.mul_(0.5))
    subtract_product_(moved, wide, multiplier.to(wide.dtype))
    return moved, removed


def _multiplier(y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Λ and S. Iterates on 2D, which takes three calls an iteration."""
    skew = skew_part(y)
    normal = y - skew
    product = torch.matmul(normal, torch.add(normal, skew, alpha=2))
    known = error.sub(normal, alpha=2).sub_(product.add(product.mT), alpha=0.5)  # C
    start, twice, four = known.mul(-0.5), -known, skew.mul_(4)
    for _ in range(_iterations(y)):
        product = plus_product(start, twice, twice + four, alpha=-0.125)
        twice = product + product.mT
    return normal.sub(twice, alpha=0.5), normal


def _iterations(q: Tensor) -> int:
    return CORRECTED_ITERATIONS if corrects(q) else ITERATIONS


def digits_for(q: Tensor) -> AbstractContextManager[None]:
    """Few digits where the next step removes what they leave."""
    return few_digits() if corrects(q) and q.shape[-1] >= FEW_DIGITS else nullcontext()
