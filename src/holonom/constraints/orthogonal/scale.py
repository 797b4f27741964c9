"""Weights W = cQ with QᵀQ = I: what a verb does to Q, done to W.

dW = P dt is dQ = (P/c) dt, and an overdamped step −h∇L + √(2τh) R of W is one of Q divided by c. Kicks and noise of
momenta are those of P, which has no scale. The skew matrix of a square weight is Ω = QᵀP, with Q = W/c.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import TypeVar

from torch import Tensor

from ..._step.integrate import Phase, Scalar
from ...errors import ConstraintError
from ..base import INITIAL
from .matmul import exact_gram_error

T = TypeVar("T")


def checked_scale(scale: float | str) -> float | None:
    """A scale as a number; None for "initial"."""
    if isinstance(scale, str) and scale == INITIAL:
        return None
    if not isinstance(scale, Real) or isinstance(scale, bool) or not 0 < scale < math.inf:
        raise ConstraintError(f"Orthogonal: scale must be a positive number or 'initial', got {scale!r}")
    return float(scale)


def scaled(x: Tensor, c: Scalar | None) -> Tensor:
    """c·x; None is 1."""
    return x if c is None else x * c


def unscaled(x: Tensor, c: Scalar | None) -> Tensor:
    """x/c; None is 1."""
    return x if c is None else x / c


def on_unit_(x: Phase, verb: Callable[[Phase], T]) -> T:
    """Run ``verb`` on Q = W/c and P/c. W is changed by c times the change of Q: a Q that stays leaves W as it is."""
    before = x.q / x.radius
    unit = x._replace(q=before.clone(), p=None if x.p is None else x.p / x.radius, radius=None)
    result = verb(unit)
    x.q.add_(unit.q.sub_(before).mul_(x.radius))
    if x.p is not None:
        x.p.copy_(unit.p.mul_(x.radius))
    return result


def relative_gram_error(q: Tensor, c: Scalar | None) -> Tensor:
    """WᵀW/c² − I; W is divided in double precision, where there is one, so that rounding of W/c is no error of W."""
    if c is None:
        return exact_gram_error(q)
    return exact_gram_error((q if q.device.type == "mps" else q.double()) / c).to(q.dtype)
