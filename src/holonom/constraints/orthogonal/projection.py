"""A step cZ off a tall Q, and back to QᵀQ = I along Q: Q' = Q + cZ − QΛ with Λ symmetric.

A *short* step takes one iteration of (4.55), Λ = ½E with E = (Q + cZ)ᵀ(Q + cZ) − I. It misses I by
−½(YᵀE + EY) + ¼E² with Y = cQᵀZ, nowhere by more than |e|(|z| + ¼|e|) for the longest columns e of E and z of cZ.
Where that is below rounding, one iteration is exact. It takes one symmetric product, half a product's work, and one
to apply Λ. E contains the errors of earlier steps, so a short step removes them.

Any other step is solved for in the s × s matrices Y and ZᵀZ (:mod:`.multiplier`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..._step.integrate import Scalar
from .matmul import (
    longest_column,
    product_within,
    scaled_less_product,
    scaled_product,
    skew_part,
    subtract_product_,
    symmetric_product,
)
from .multiplier import deviation

MAX_NORMAL = 0.03  # |S| of a step along QS, S symmetric: it multiplies an error of QᵀQ = I by 1 + 2|S|
SHORT_SLACK = 8  # a short step may leave this many tolerances, because the next step removes them
MAX_STRETCH = 2.5  # E is at most this much longer than Z if Z alone made it: 2, and |Z|
NORMAL_SHARE = 0.5  # of a gradient's columns, about, points off the manifold


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
    """½E of a short step, whether the step made E rather than an earlier error of Q, and a buffer for the change."""

    half: Tensor
    by_step: bool
    buffer: Tensor


def move_(q: Tensor, z: Tensor, scale: float, tolerance: float, only_short: bool = False) -> bool:
    """Q ← Q + cZ − QΛ. Returns whether the step was a short one, after which nothing needs polishing.

    ``only_short``: leave Q alone if it is not.
    """
    step = _measure(q, z, scale)
    if step is None:
        return False
    short = _short(q, step, tolerance, NORMAL_SHARE)
    if short is not None or not only_short:
        q.add_(_change(q, step, short, tolerance))
    return short is not None


def rattle_(q: Tensor, p: Tensor, h: float, tolerance: float, may_be_short: bool) -> bool:
    """Q' = Q + hP − QΛ, and P ← (Q' − Q)/h, whose normal part at Q' is ½hPᵀP. Returns whether the step was short.

    P stays if Λ only corrects an earlier error of Q: such a correction must never become momentum.
    """
    step = _measure(q, p, h)
    if step is None:
        return False
    short = _short(q, step, tolerance, 0.0) if may_be_short else None
    if short is not None and short.by_step:
        subtract_product_(p, q, short.half, 1 / h)
        q.add_(p, alpha=h)
        return True
    change = _change(q, step, short, tolerance)
    q.add_(change)
    if short is None:
        torch.div(change, h, out=p)
    return short is not None


def rattle_each_(q: Tensor, p: Tensor, h: Tensor, tolerance: float) -> None:
    """The same with an h for every replica. A step that is short for one may be long for another: never short."""
    step = _measure(q, h * p, 1.0)
    if step is not None:
        change = _change(q, step, None, tolerance)
        q.add_(change)
        p.copy_(divided(change, h, p))


def divided(x: Tensor, a: Scalar, otherwise: Tensor | float = 0.0) -> Tensor:
    """x/a, and ``otherwise`` where a is 0."""
    return torch.where(a == 0, otherwise, x / a) if isinstance(a, Tensor) else x / a


def _measure(q: Tensor, z: Tensor, scale: float) -> Step | None:
    """None for no step at all."""
    longest = longest_column(z)
    if longest == 0:
        return None
    if not 1e-15 < longest < 1e15:  # squares would leave the range of the numbers
        return Step(scale * z, 1.0, abs(scale) * longest)
    return Step(z, scale, longest)


def _change(q: Tensor, step: Step, short: Short | None, tolerance: float) -> Tensor:
    """cZ − QΛ, to be added to Q at once: Q + cZ, rounded first, would be off the same way step after step."""
    if short is None:
        return _long_change(q, step, tolerance)
    change = torch.mul(step.z, step.scale, out=short.buffer)  # a product is subtracted faster in place
    subtract_product_(change, q, short.half)
    return change


def _short(q: Tensor, step: Step, tolerance: float, normal_share: float) -> Short | None:
    """None where Λ = ½E is not exact."""
    allowed = SHORT_SLACK * tolerance
    promising = step.length * step.length * (normal_share + step.length) <= allowed
    if not promising:
        return None
    moved = torch.add(q, step.z, alpha=step.scale)
    half = _half_stretch(moved)
    stretch = 2 * longest_column(half)
    if not stretch * (step.length + stretch / 4) <= allowed:
        return None
    return Short(half, stretch <= MAX_STRETCH * step.length, buffer=moved)


def _half_stretch(moved: Tensor) -> Tensor:
    """½(MᵀM − I); M is overwritten."""
    product = symmetric_product(moved.mT, moved)
    # A skew part left by rounding would turn the weights, and P by as much divided by h.
    half = product.add(product.mT).mul_(0.25)
    # Sums of squares grow to 1, and a product loses digits on the way; sum() adds in parts.
    half.diagonal(dim1=-2, dim2=-1).copy_((moved.square_().sum(-2) - 1) / 2)
    return half


def _long_change(q: Tensor, step: Step, tolerance: float) -> Tensor:
    """cZ − QΛ for any step."""
    z, scale, longest = step
    y, skew, symmetric = _split(q, z, scale)
    if not longest_column(symmetric) <= MAX_NORMAL:
        z, scale = scaled_less_product(z, scale, q, symmetric), 1.0
        longest = longest_column(z)
        y, skew, symmetric = _split(q, z, scale)
    size = scale * longest * scale * longest
    excess = product_within(z.mT, z, size, tolerance, symmetric=True)
    if excess is not None:
        within = product_within(y.mT, y, size, tolerance, symmetric=True)
        excess = excess.mul_(scale * scale)
        excess = excess if within is None else excess.sub_(within)
    d = deviation(skew, excess, False, tolerance)
    return scaled_less_product(z, scale, q, symmetric if d is None else symmetric.sub_(d))


def _split(q: Tensor, z: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """cQᵀZ, its skew and its symmetric part."""
    y = scaled_product(q.mT, z, scale)
    skew = skew_part(y)
    return y, skew, y - skew
