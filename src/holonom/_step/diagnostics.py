"""Diagnostics of a group, read from the phases of its buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from .._torch import full_precision
from ..constraints.base import Constraint
from ..scheme import compile_word
from .buckets import Bucket
from .integrate import Phase


@full_precision()
def worst(buckets: Iterable[Bucket], measure: Callable[[Constraint, Phase], Tensor], moving: bool = False) -> float:
    """The largest value of a diagnostic over all phases, or over those with a momentum."""
    phases = [(b.space, x) for b in buckets for x in b.phases() if not moving or x.p is not None]
    return max((float(measure(space, x)) for space, x in phases), default=0.0)


@full_precision()
def kinetic_temperature(group: dict[str, Any], buckets: list[Bucket]) -> float:
    """pᵀp / degrees of freedom; NaN where there are no momenta or nothing is free to move."""
    freedom = sum(b.degrees_of_freedom for b in buckets)
    if compile_word(group["scheme"]).overdamped or not freedom:
        return math.nan
    momenta = [m for b in buckets for x in b.phases() for m in b.space.tangent(x)]
    return sum(float(m.square().sum()) for m in momenta) / freedom
