"""A step Z off a tall Q, and back to QᵀQ = I along Q: Q' = Q + cZ − QΛ with Λ symmetric.

A *short* step takes one iteration of (4.55), Λ = ½E with E = (Q + cZ)ᵀ(Q + cZ) − I. It misses I by
−½(YᵀE + EY) + ¼E² with Y = cQᵀZ, nowhere by more than |e|(|z| + ¼|e|) for the longest columns e of E and z of cZ;
below rounding that is exact. It takes one symmetric product, half a product's work, and one to apply Λ. E is as exact
as QᵀQ itself can be known, and sees, and removes, what earlier steps left.

Any other step is solved for in the s × s matrices Y and ZᵀZ (:mod:`.deviation`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .deviation import deviation
from .multiply import multiplies_exactly
from .products import (
    longest_column,
    product_within,
    scaled_less_product,
    scaled_product,
    skew_part,
    symmetric_product,
)

_NORMAL = 0.03  # of a step along QS, S symmetric: it makes an error of QᵀQ = I grow by 1 + 2|S| between polishes
_SEEN = 8  # times as much as a step may leave that nobody sees, one may leave that the next step sees


def slide_(q: Tensor, z: Tensor, scale: float, tolerance: float, normal: float) -> Tensor:
    """Q ← Q + cZ − QΛ; returns what was added. ``normal``: the share of Z expected to lie along Q."""
    longest = 1.0 if q.is_cuda else longest_column(z)
    if not 1e-15 < longest < 1e15:  # squares would leave the range of the numbers
        z, scale, longest = scale * z, 1.0, abs(scale) * longest
    step = short_step(q, z, scale, abs(scale) * longest, tolerance, normal)
    if step is None:
        step = _long_step(q, z, scale, longest, tolerance)
    q.add_(step)
    return step


def short_step(q: Tensor, z: Tensor, scale: float, longest: float, tolerance: float, normal: float) -> Tensor | None:
    """cZ − ½QE, or None where that is not exact. ``longest``: the longest column of cZ."""
    allowed = _SEEN * tolerance
    promising = longest * longest * (normal + longest) <= allowed
    if q.is_cuda or not promising or not multiplies_exactly():
        return None
    stretch = _stretch(torch.add(q, z, alpha=scale))
    length = longest_column(stretch)
    if not length * (longest + length / 4) <= allowed:
        return None
    return scaled_less_product(z, scale, q, stretch.mul_(0.5))


def _stretch(moved: Tensor) -> Tensor:
    """MᵀM − I; M is overwritten."""
    stretch = symmetric_product(moved.mT, moved)
    # Sums of squares grow to 1, and a product loses digits on the way; a sum is taken in parts.
    stretch.diagonal(dim1=-2, dim2=-1).copy_(moved.square_().sum(-2).sub_(1))
    return stretch


def _long_step(q: Tensor, z: Tensor, scale: float, longest: float, tolerance: float) -> Tensor:
    y, skew, symmetric = _split(q, z, scale)
    if q.is_cuda or not longest_column(symmetric) <= _NORMAL:
        z, scale = scaled_less_product(z, scale, q, symmetric), 1.0
        longest = 1.0 if q.is_cuda else longest_column(z)
        y, skew, symmetric = _split(q, z, scale)
    size = torch.inf if q.is_cuda else scale * longest * scale * longest
    excess = product_within(z.mT, z, size, tolerance, symmetric=True)  # that is, within it once scaled
    if excess is not None:
        within = product_within(y.mT, y, size, tolerance, symmetric=True)
        excess = excess.to(q.dtype).mul_(scale * scale)
        excess = excess if within is None else excess.sub_(within)
    d = deviation(skew, excess, False, tolerance)
    return scaled_less_product(z, scale, q, symmetric if d is None else symmetric.sub_(d))


def _split(q: Tensor, z: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """cQᵀZ, its skew and its symmetric part."""
    y = scaled_product(q.mT, z, scale)
    skew = skew_part(y)
    return y, skew, y - skew
