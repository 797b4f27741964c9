"""Multiple time-stepping on Hamiltonians (thesis 1.2.3): r-RESPA and its Langevin form, for any number of scales.

A *flow* takes positions, momenta and a time and returns both anew. :func:`respa` puts kicks around an
inner flow and is a flow again, so time scales nest::

    respa(∇U_S, respa(∇U_F, drift()), k)              Algorithm 1.1
    respa(∇U_S, respa(∇U_F, thermal_drift(…)), k)     Algorithm 1.2
    respa(∇U_1, respa(∇U_2, respa(∇U_3, drift()), k_2), k_1)

Arrays may be NumPy's or torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Array = Any
Gradient = Callable[[Array], Array]
Flow = Callable[[Array, Array, float], tuple[Array, Array]]


def drift(mass: float | Array = 1.0) -> Flow:
    """q ← q + t·p/m."""
    return lambda q, p, t: (q + t * p / mass, p)


def thermal_drift(friction: float, temperature: float, noise: Callable[[], Array], mass: float | Array = 1.0) -> Flow:
    """Half a drift, an exact Ornstein–Uhlenbeck step, half a drift: AOA, the inside of BAOAB.

    p ← e^{−γt}p + √(τm(1 − e^{−2γt})) R; (Algorithm 1.2 forgets the p.) ``noise()`` draws R.
    """

    def flow(q: Array, p: Array, t: float) -> tuple[Array, Array]:
        damping = math.exp(-friction * t)
        amplitude = (temperature * mass * (1 - damping * damping)) ** 0.5
        q = q + t / 2 * p / mass
        p = damping * p + amplitude * noise()
        return q + t / 2 * p / mass, p

    return flow


def harmonic(omega: float) -> Flow:
    """The exact flow of H = ½p² + ½Ω²q²: F_t of (1.34)."""

    def flow(q: Array, p: Array, t: float) -> tuple[Array, Array]:
        c, s = math.cos(omega * t), math.sin(omega * t)
        return c * q + s / omega * p, -omega * s * q + c * p

    return flow


def respa(gradient: Gradient, inner: Flow, substeps: int = 1) -> Flow:
    """Half a kick by ∇U, ``substeps`` times the inner flow for t/substeps, half a kick (Algorithm 1.1).

    It is symmetric, symplectic if the inner flow is, and of second order. Around a plain drift it is Verlet's method.
    """
    if substeps < 1:
        raise ValueError(f"substeps must be at least 1, got {substeps}")

    def flow(q: Array, p: Array, t: float) -> tuple[Array, Array]:
        p = p - t / 2 * gradient(q)
        for _ in range(substeps):
            q, p = inner(q, p, t / substeps)
        return q, p - t / 2 * gradient(q)

    return flow
