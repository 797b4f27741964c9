"""The exact means, rates and variances of overdamped Langevin dynamics on a circle and a sphere.

The generator 𝓛 = τΔ − ∇U·∇ is self-adjoint in L²(ν), ν ∝ e^{−U/τ}, with eigenvalues 0 = −λ₀ > −λ₁ ≥ …;
for an observable φ = Σ cₖψₖ

    ∫ |E(φ(q_t)|q₀) − ⟨φ⟩|² dν(q₀) = Σ_{k≥1} cₖ² e^{−2λₖt},   σ_φ² = Σ_{k≥1} 2cₖ²/λₖ,

and the gap λ₁ = 2L/β is the constant of the Poincaré inequality (4.10).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...run import Array


@dataclass(frozen=True)
class Spectrum:
    """⟨φ⟩, and λₖ and cₖ² of all k ≥ 1 with cₖ ≠ 0."""

    gap: float
    mean: float
    rates: Array
    parts: Array

    @property
    def variance(self) -> float:
        return float(self.parts.sum())

    @property
    def asymptotic_variance(self) -> float:
        """σ_φ²."""
        return float((2 * self.parts / self.rates).sum())

    @property
    def bound(self) -> float:
        """(β/L)·Var φ = (2/λ₁)·Var φ, an upper bound of σ_φ² by the corollary."""
        return 2 * self.variance / self.gap

    def deviation(self, time: Array) -> Array:
        """Σ cₖ² e^{−2λₖt}."""
        sums: Array = (self.parts * np.exp(-2 * np.multiply.outer(time, self.rates))).sum(-1)
        return sums

    def variance_of_average(self, time: float) -> float:
        """T·Var⟨φ⟩_T for a chain that starts in equilibrium; σ_φ² as T → ∞."""
        x = self.rates * time
        return float((2 * self.parts / self.rates * (1 + np.expm1(-x) / x)).sum())


def sphere(radius: float, temperature: float) -> Spectrum:
    """U = 0 on S², φ = x/r, a spherical harmonic: λ = 2τ/r²."""
    gap = 2 * temperature / radius**2
    return Spectrum(gap, 0.0, np.array([gap]), np.array([1 / 3]))


def circle(radius: float, temperature: float, tilt: float = 0.0, modes: int = 101) -> Spectrum:
    """U = −a sin α on a circle, φ = sin α = x/r; λ = τ/r² at a = 0.

    With f = ψ e^{U/2τ}, −𝓛 becomes the Schrödinger operator −τψ'' + (U'²/4τ − U''/2)ψ, here in as many points as
    modes, with the periodic spectral derivative.
    """
    angle = 2 * np.pi * np.arange(modes) / modes
    shift = np.subtract.outer(np.arange(modes), np.arange(modes))
    with np.errstate(divide="ignore", invalid="ignore"):
        away = np.pi * shift / modes
        second = np.where(shift == 0, -(modes**2 - 1) / 12, -0.5 * (-1.0) ** shift * np.cos(away) / np.sin(away) ** 2)
    slope, bend = -tilt * np.cos(angle), tilt * np.sin(angle)
    potential = slope**2 / (4 * temperature) - bend / 2
    rates, waves = np.linalg.eigh((-temperature * second + np.diag(potential)) / radius**2)
    root = np.exp(tilt * np.sin(angle) / (2 * temperature))
    parts = waves.T @ (np.sin(angle) * root) / np.linalg.norm(root)
    mean = float((np.sin(angle) * root**2).sum() / (root**2).sum())
    relevant = parts[1:] ** 2 > 1e-14
    return Spectrum(float(rates[1]), mean, rates[1:][relevant], parts[1:][relevant] ** 2)
