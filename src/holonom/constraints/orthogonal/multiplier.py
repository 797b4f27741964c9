"""The Lagrange multiplier of a step: the quasi-Newton iteration (4.55) in s × s matrices.

A step Z from Q ends at Q' = Q + Z − QΛ with Q'ᵀQ' = I. Split QᵀZ = U + K into its symmetric and skew part; then
QᵀQ' = I + K + D with D = U − Λ, and Q'ᵀQ' = I becomes

    2D + D² + DK − KD − K² + E = 0,   E = ZᵀZ − (QᵀZ)ᵀ(QᵀZ):

one small product an iteration, without ever adding the I that would cost D its digits. For a square Q, E is 0
and D a series in K², so that DK = KD. D is of second order in the step: its products need few digits, and
a short step none at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import ProjectionError
from .matmul import largest_entry, longest_and_norm, product_within

MAX_ITERATIONS = 300


def deviation(skew: Tensor, excess: Tensor | None, square: bool, tolerance: float) -> Tensor | None:
    """D = sym(QᵀQ') − I for K and E, so that Q'ᵀQ' misses I by little more than ``tolerance``; None is 0, as for E."""
    turn, rate = longest_and_norm(skew)
    squared = product_within(skew, skew, turn * turn, tolerance, symmetric=True)
    if squared is None and excess is None:
        return None
    if square and squared is not None and rate * turn * rate * turn / 4 <= tolerance:
        return squared.mul_(0.5)
    start = _start(squared, excess, skew.dtype)
    length, size = longest_and_norm(start)
    # What the first iteration would find at most, and the share of it that it would leave.
    first, share = (length * length, size) if square else (length * (length + 2 * turn), size + 2 * rate)
    if first <= tolerance:
        return start
    d = start.sub(_quadratic(start, skew, square, first, tolerance), alpha=0.5)
    if first * share <= tolerance:
        return d
    floor = torch.finfo(d.dtype).eps * (size + rate)  # rounding leaves at least this much
    for _ in range(MAX_ITERATIONS):
        correction = _violation(start, d, skew, square, first, tolerance)
        error = largest_entry(correction)
        if not error < 10:
            break
        d.sub_(correction, alpha=0.5)
        if error * min(1.0, share) <= max(tolerance, floor):
            return d
    raise ProjectionError(
        f"the projection onto orthogonal matrices did not converge: the step turns the weights by {rate:.2g} and "
        f"stretches them by {size:.2g} (Frobenius norms; it always works when they add up to less than 0.5). "
        f"Lower lr, clip the gradient, or add friction"
    )


def _start(squared: Tensor | None, excess: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(K² − E)/2: D to first order."""
    if excess is None:
        assert squared is not None
        return squared.to(dtype).mul_(0.5)
    half = excess.to(dtype).mul_(-0.5)
    return half if squared is None else half.add_(squared, alpha=0.5)


def _quadratic(d: Tensor, skew: Tensor, square: bool, size: float, tolerance: float) -> Tensor:
    """D² + DK − KD, whose products ``size`` bounds."""
    product = product_within(d, d if square else d.add(skew, alpha=2), size, tolerance / 2, symmetric=square)
    assert product is not None
    return product if square else product.add(product.mT).mul_(0.5)


def _violation(start: Tensor, d: Tensor, skew: Tensor, square: bool, size: float, tolerance: float) -> Tensor:
    """Q'ᵀQ' − I = 2D + D² + DK − KD − K² + E."""
    return d.sub(start).mul_(2).add_(_quadratic(d, skew, square, size, tolerance))
