"""Steps on a device. They read nothing back, so the amount of work is fixed.

With M = Q + Z, the condition (M − QΛ)ᵀ(M − QΛ) = I reads

    2Λ + ΛY + YᵀΛ − Λ² = E,   Y = QᵀZ,   E = MᵀM − I.

It is solved by Λ ← ½E + ¼(V + Vᵀ), V = Λ(Λ − 2Y), from Λ = ½E: the quasi-Newton iteration (4.55) in s × s matrices.
The start misses Λ by terms of third order in a tangent step, of second order otherwise, and each iteration leaves |K|
of what the last one left, K the skew part of Y.

*Correcting* steps multiply MᵀM in double precision, where the device is as fast at it. E then contains the error
δ = QᵀQ − I of earlier steps, so Λ removes it, but for terms of size |δΛ| that the next step removes: nothing is left to
polish. Λ depends on errors of Y, and of the s × s products, to second order only. E needs all digits and QΛ those of
single precision; on tensor cores the others take a sixth of the time with few digits.

*Trusting* steps take δ for 0: E = 2S + ZᵀZ, S the symmetric part of Y. They are polished now and then, like those of a
CPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor

from ..._torch import few_digits
from .matmul import gram, gram_error, plus_product, scaled_less_product, scaled_product, subtract_product_

FAST_DOUBLE = {(8, 0), (9, 0), (10, 0)}  # compute capabilities whose tensor cores multiply in double precision
FEW_DIGITS = 256  # sides from which products of few digits are used: relative errors of an entry fall with √side
# n iterations leave at most about |K|ⁿ⁺³/2 of a tangent step that turns weights by |K|.
ITERATIONS = 12  # of trusting steps
CORRECTED_ITERATIONS = 6  # 3e-7 at |K| = 0.2; the next step removes it
FEW_DIGITS_ITERATIONS = 5  # 3 would leave up to 1e-5 of a step that turns weights by 0.3


@cache
def exact_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """The type of products that need all digits."""
    if device.type != "cuda" or dtype != torch.float32:
        return dtype
    return torch.float64 if torch.cuda.get_device_capability(device) in FAST_DOUBLE else dtype


def corrects(q: Tensor) -> bool:
    """Whether steps measure QᵀQ with more digits than Q has."""
    return exact_dtype(q.device, q.dtype) != q.dtype


def move_(q: Tensor, z: Tensor, scale: float) -> bool:
    """Q ← Q + cZ − QΛ. Returns whether nothing is left to polish."""
    if corrects(q):
        change = scaled_less_product(z, scale, q, _multiplier(q, *_measured(q, z, scale)))
    else:
        change = _trusting_change(q, scale * z)
    q.add_(change)
    return corrects(q)


def rattle_(q: Tensor, p: Tensor, h: float | Tensor, strips: bool) -> bool:
    """The same with Z = hP, and P ← (Q' − Q)/h. Returns whether nothing is left to polish.

    What removes δ is a normal momentum −Qδ/(2h). The next drift removes that again, but for |δ|/2 of P.
    ``strips``: δ may be more than roundings, so it is kept out of P, as well as few digits tell what it is.
    """
    if corrects(q) and not strips and isinstance(h, float):
        subtract_product_(p, q, _multiplier(q, *_measured(q, p, h)), 1 / h)
        q.add_(p, alpha=h)
        return True
    z = h * p
    if not corrects(q):
        change = _trusting_change(q, z)
        q.add_(change)
    else:
        y, error = _measured(q, z, 1.0)
        change = scaled_less_product(z, 1.0, q, _multiplier(q, y, error))
        with digits_for(q):
            removed = torch.matmul(q, error.sub_(y).sub_(y.mT).sub_(gram(z, z)).mul_(0.5)) if strips else None  # ½Qδ
        q.add_(change)
        if removed is not None:
            change.add_(removed)
    p.copy_(torch.where(h == 0, p, change / h) if isinstance(h, Tensor) else change.div_(h))
    return corrects(q)


def turn_(q: Tensor, skew: Tensor) -> bool:
    """Q ← Q(I + K + D − ½δ) for a square Q, D = √(I + K²) − I. Returns whether nothing is left to polish."""
    with digits_for(q):
        start = torch.matmul(skew, skew).mul_(0.5)
        d = start
        for _ in range(_iterations(q) // 2 + 1):  # n leave about |K|²ⁿ⁺⁴/2ⁿ⁺³
            d = plus_product(start, d, d, alpha=-0.5)
    change = skew + d
    if corrects(q):
        change.sub_(gram_error(q.to(exact_dtype(q.device, q.dtype))), alpha=0.5)
    q.add_(torch.matmul(q, change))
    return corrects(q)


def _trusting_change(q: Tensor, z: Tensor) -> Tensor:
    """Z − QΛ. Along QS, S symmetric, a step multiplies δ by 1 + 2|S|, so S is removed first."""
    y = gram(q, z)
    z = scaled_less_product(z, 1.0, q, (y + y.mT).mul_(0.5))
    y = gram(q, z)
    error = gram(z, z).add_(y).add_(y.mT)
    return scaled_less_product(z, 1.0, q, _multiplier(q, y, error))


def _measured(q: Tensor, z: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Y and E of a step cZ."""
    # A factor of several dimensions, if only of length 1, has the sum computed in its precision, in one pass.
    factor = q.new_full((1,) * q.ndim, scale, dtype=exact_dtype(q.device, q.dtype))
    error = gram_error(torch.addcmul(q, z, factor)).to(q.dtype)
    with digits_for(q):
        return scaled_product(q.mT, z, scale), error


def _multiplier(q: Tensor, y: Tensor, error: Tensor) -> Tensor:
    """Λ."""
    half = error * 0.5
    multiplier = half
    with digits_for(q):
        for _ in range(_iterations(q)):
            quarter = scaled_product(multiplier, torch.sub(multiplier, y, alpha=2), 0.25)
            multiplier = half + quarter.add(quarter.mT)
    return multiplier


def _iterations(q: Tensor) -> int:
    if not corrects(q):
        return ITERATIONS
    return FEW_DIGITS_ITERATIONS if q.shape[-1] >= FEW_DIGITS else CORRECTED_ITERATIONS


def digits_for(q: Tensor) -> AbstractContextManager[None]:
    """Few digits where the next step removes what they leave."""
    return few_digits() if corrects(q) and q.shape[-1] >= FEW_DIGITS else nullcontext()
