"""A step Z off a tall Q, and back to QᵀQ = I along Q: Q' = Q + cZ − QΛ with Λ symmetric.

A *short* step takes one iteration of (4.55), Λ = ½E with E = (Q + cZ)ᵀ(Q + cZ) − I. It misses I by
−½(YᵀE + EY) + ¼E² with Y = cQᵀZ, nowhere by more than |e|(|z| + ¼|e|) for the longest columns e of E and z of cZ;
below rounding that is exact. It takes one symmetric product, half a product's work, and one to apply Λ. E is as exact
as QᵀQ itself can be known, and sees, and removes, what earlier steps left.

Any other step is solved for in the s × s matrices Y and ZᵀZ (:mod:`.deviation`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..lists import divided
from .deviation import deviation
from .multiply import multiplies_exactly
from .products import (
    longest_column,
    product_within,
    scaled_less_product,
    scaled_product,
    skew_part,
    subtract_product_,
    symmetric_product,
)

_NORMAL = 0.03  # of a step along QS, S symmetric: it makes an error of QᵀQ = I grow by 1 + 2|S| between polishes
_SEEN = 8  # times as much as a step may leave that nobody sees, one may leave that the next step sees
_EXPLAINED = 2.5  # times as long as Z, E is by Z alone: 2, and |Z|


class Step(NamedTuple):
    """A step cZ; ``longest`` is Z's longest column."""

    z: Tensor
    scale: float
    longest: float

    @property
    def length(self) -> float:
        """The longest column of cZ."""
        return abs(self.scale) * self.longest


class Short(NamedTuple):
    """½E of a short step, whether E is the step's doing rather than what was wrong with Q, and room for a change."""

    half: Tensor
    own: bool
    room: Tensor


def slide_(q: Tensor, z: Tensor, scale: float, tolerance: float, normal: float, only_short: bool = False) -> bool:
    """Q ← Q + cZ − QΛ. Returns whether the step was a short one, which leaves no error of earlier ones behind.

    ``normal``: the share of Z expected to lie along Q. ``only_short``: do not take any other step.
    """
    step = _measured(q, z, scale)
    if step is None:
        return False
    short = _short(q, step, tolerance, normal)
    if short is not None or not only_short:
        q.add_(_change(q, step, short, tolerance))
    return short is not None


def rattle_(q: Tensor, p: Tensor, h: float, tolerance: float, may_be_short: bool) -> bool:
    """Q' = Q + hP − QΛ, and P ← (Q' − Q)/h, which leans off the tangent space at Q' by ½hPᵀP.

    P stays if Λ only puts right what was wrong with Q. Returns whether the step was a short one.
    """
    step = _measured(q, p, h)
    if step is None:
        return False
    short = _short(q, step, tolerance, normal=0.0) if may_be_short else None
    if short is not None and short.own:
        subtract_product_(p, q, short.half, 1 / h)
        q.add_(p, alpha=h)
        return True
    change = _change(q, step, short, tolerance)
    q.add_(change)
    if short is None:
        torch.div(change, h, out=p)
    return short is not None


def rattle_each_(q: Tensor, p: Tensor, h: Tensor, tolerance: float) -> None:
    """The same with an h for every replica. What is nothing to one of them may be much to another: never short."""
    step = _measured(q, h * p, 1.0)
    if step is not None:
        change = _change(q, step, None, tolerance)
        q.add_(change)
        p.copy_(divided(change, h, p))


def _measured(q: Tensor, z: Tensor, scale: float) -> Step | None:
    """None for no step at all."""
    longest = 1.0 if q.is_cuda else longest_column(z)
    if longest == 0:
        return None
    if not 1e-15 < longest < 1e15:  # squares would leave the range of the numbers
        return Step(scale * z, 1.0, abs(scale) * longest)
    return Step(z, scale, longest)


def _change(q: Tensor, step: Step, short: Short | None, tolerance: float) -> Tensor:
    """cZ − QΛ. It is added to Q as one: Q + cZ, rounded by itself, would be off the same way step after step."""
    if short is None:
        return _long_change(q, step, tolerance)
    change = torch.mul(step.z, step.scale, out=short.room)  # a product is subtracted faster in place
    subtract_product_(change, q, short.half)
    return change


def _short(q: Tensor, step: Step, tolerance: float, normal: float) -> Short | None:
    """None where Λ = ½E is not exact."""
    allowed = _SEEN * tolerance
    promising = step.length * step.length * (normal + step.length) <= allowed
    if q.is_cuda or not promising or not multiplies_exactly():
        return None
    moved = torch.add(q, step.z, alpha=step.scale)
    half = _half_stretch(moved)
    stretch = 2 * longest_column(half)
    if not stretch * (step.length + stretch / 4) <= allowed:
        return None
    return Short(half, stretch <= _EXPLAINED * step.length, room=moved)


def _half_stretch(moved: Tensor) -> Tensor:
    """½(MᵀM − I); M is overwritten."""
    product = symmetric_product(moved.mT, moved)
    # What rounding leaves of a skew part would turn the weights, and P by as much divided by h.
    half = product.add(product.mT).mul_(0.25)
    # Sums of squares grow to 1, and a product loses digits on the way; a sum is taken in parts.
    half.diagonal(dim1=-2, dim2=-1).copy_((moved.square_().sum(-2) - 1) / 2)
    return half


def _long_change(q: Tensor, step: Step, tolerance: float) -> Tensor:
    """cZ − QΛ."""
    z, scale, longest = step
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
