"""Observables of a simulated network: numbers per group, read from its phases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .cell import Cell
from .constraints.base import Constraint, Phase
from .lists import sum_of_squares
from .scheme import compile_word

Phases = list[tuple[Cell, Phase]]


def worst(phases: Phases, measure: Callable[[Constraint, Phase], Tensor]) -> float:
    """The largest value of a diagnostic over the cells of a group."""
    return max((float(measure(cell.space, phase)) for cell, phase in phases), default=0.0)


def kinetic_temperature(group: dict[str, Any], phases: Phases) -> float:
    """pᵀp / degrees of freedom; NaN where there are no momenta or nothing is free to move."""
    freedom = sum(cell.degrees_of_freedom() for cell, _ in phases)
    if compile_word(group["scheme"]).overdamped or not freedom:
        return math.nan
    return sum(float(sum_of_squares(cell.space.tangent(phase))) for cell, phase in phases) / freedom
