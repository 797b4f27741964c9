"""The methods of thesis chapter 3 as its figures name and set them, singly or as a grid in one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from .... import presets
from ....ensemble import Ensemble
from ...run import Array, Fit
from .problem import Method


def sgd(step: float, momentum: float = 0.0) -> Method:
    return lambda ensemble: torch.optim.SGD(ensemble.parameters(), step, momentum, fused=ensemble.seeds.is_cuda)


def adam(step: float) -> Method:
    """With β = (0.9, 0.999) and ε = 1e-8, as published."""

    def make(ensemble: Ensemble) -> Optimizer:
        cuda = ensemble.seeds.is_cuda
        return torch.optim.Adam(ensemble.parameters(), step, capturable=cuda, fused=cuda)

    return make


def temperature_of(noise: float) -> float:
    """The thesis writes SGLD as θ ← θ + hG + σ√h R (3.11), so 2τ = σ²."""
    return noise**2 / 2


def sgld(step: float, noise: float) -> Method:
    return lambda ensemble: presets.sgld(ensemble, step, temperature_of(noise))


def lol(step: float, friction: float = 0.01, temperature: float = 1e-3) -> Method:
    return lambda ensemble: presets.lol(ensemble, step, friction, temperature)


def adlala(step: float, **settings: float) -> Method:
    return lambda ensemble: presets.adlala(ensemble, step, **settings)


def grid(preset: Callable[..., Optimizer], points: Sequence[Mapping[str, float]], **fixed: Any) -> Method:
    """One optimizer for all points of a grid: the settings they name become one value per repeat of the ensemble."""

    def make(ensemble: Ensemble) -> Optimizer:
        values = {name: ensemble.spread([point[name] for point in points]) for name in points[0]}
        return preset(ensemble, **values, **fixed)

    return make


def number(value: float) -> str:
    """1e-5 rather than 1e-05 or 0.00001."""
    return f"{value:.0e}".replace("e-0", "e-") if 0 < value < 0.01 else f"{value:g}"


def strongest(fits: Mapping[str, Fit], metric: str = "test_accuracy") -> str:
    """The arm whose mean final value is highest: rivals are compared at their best setting."""
    return max(fits, key=lambda arm: float(np.nanmean(fits[arm].final(metric))))


def over_training(fit: Fit, metric: str = "test_accuracy") -> Array:
    """(runs,) mean over the whole training after the start: a fast method has more of it."""
    mean: Array = fit.curves[metric][1:].mean(0)
    return mean


def steps_to(fit: Fit, level: float, metric: str = "test_accuracy") -> Array:
    """(runs,) the first step that was seen at ``level``; NaN for runs that were never."""
    reached = fit.curves[metric] >= level
    first = fit.steps[reached.argmax(0)].astype(float)
    return np.where(reached.any(0), first, np.nan)
