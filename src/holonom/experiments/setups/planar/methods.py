"""The optimizers of thesis chapter 3 with its settings, singly or as a grid in one ensemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from .... import presets
from ....ensemble import Ensemble
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


def adlala(step: float, coupling: float = 0.1, driving_noise: float = 0.01, **settings: float) -> Method:
    """With the thesis's ε and σ_A unless others are given."""
    thermostat = {"coupling": coupling, "driving_noise": driving_noise}
    return lambda ensemble: presets.adlala(ensemble, step, **thermostat, **settings)


def grid(preset: Callable[..., Optimizer], points: Sequence[Mapping[str, float]], **fixed: Any) -> Method:
    """One optimizer for all points of a grid: each named setting becomes one value per repeat of the ensemble."""

    def make(ensemble: Ensemble) -> Optimizer:
        values = {name: ensemble.spread([point[name] for point in points]) for name in points[0]}
        return preset(ensemble, **values, **fixed)

    return make


def format_number(value: float) -> str:
    """1e-5 rather than 1e-05 or 0.00001."""
    return f"{value:.0e}".replace("e-0", "e-") if 0 < value < 0.01 else f"{value:g}"
