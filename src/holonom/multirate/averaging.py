"""Reversible averaging (thesis 1.2.3.2): slow variables feel the fast ones' mean force.

For systems whose variables are slow (Q, P) or fast (q, p). The slow momentum is kicked by the slow
force averaged over the fast motion with Q held fixed, forwards before the step and backwards after
it; in between the fast motion runs with Q fixed half way (RA-0) or moving on a line (RA-1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from .mts import Array

State = tuple[Array, Array, Array, Array]


class FastMotion(Protocol):
    """The fast variables of a system, and what the slow ones feel of them."""

    def flow(self, slow: Array, velocity: Array, q: Array, p: Array, t: float) -> tuple[Array, Array]:
        """(q, p) after time t, while the slow position moves from ``slow`` with ``velocity``."""

    def mean_force(self, slow: Array, q: Array, p: Array, t: float) -> Array:
        """The mean of ∇_Q U(Q, q(s)) over s from 0 to t, Q fixed; t < 0 looks back."""


class Substeps:
    """The fast motion by Verlet's method in k substeps, averages by the trapezoidal rule (Algorithms 1.3 and 1.4)."""

    def __init__(
        self,
        slow_gradient: Callable[[Array, Array], Array],
        fast_gradient: Callable[[Array, Array], Array],
        substeps: int,
        mass: float | Array = 1.0,
    ) -> None:
        self.slow_gradient, self.fast_gradient = slow_gradient, fast_gradient
        self.substeps, self.mass = substeps, mass

    def flow(self, slow: Array, velocity: Array, q: Array, p: Array, t: float) -> tuple[Array, Array]:
        """The fast motion for a time t while the slow position moves from ``slow`` at ``velocity``."""
        s = t / self.substeps
        for _ in range(self.substeps):
            p = p - s / 2 * self.fast_gradient(slow, q)
            q = q + s * p / self.mass
            slow = slow + s * velocity
            p = p - s / 2 * self.fast_gradient(slow, q)
        return q, p

    def mean_force(self, slow: Array, q: Array, p: Array, t: float) -> Array:
        """The slow force, averaged over the fast motion of a time t."""
        total = self.slow_gradient(slow, q) / 2
        once = Substeps(self.slow_gradient, self.fast_gradient, 1, self.mass)
        for _ in range(self.substeps):
            q, p = once.flow(slow, 0.0, q, p, t / self.substeps)
            total = total + self.slow_gradient(slow, q)
        return (total - self.slow_gradient(slow, q) / 2) / self.substeps


class HarmonicPair:
    """The exact fast motion of H = ½P² + ½Ω²p² + ½Q² + ½Ω²(Q − q)² (1.41).

    With Q moving as Q₀ + Vt, u = q − Q and w = p − V/Ω² rotate with the frequency Ω² (1.43 for V = 0).
    """

    def __init__(self, omega_squared: float) -> None:
        self.omega_squared = omega_squared

    def flow(self, slow: Array, velocity: Array, q: Array, p: Array, t: float) -> tuple[Array, Array]:
        """The exact fast motion for a time t while the slow position moves from ``slow`` at ``velocity``."""
        c, s = math.cos(self.omega_squared * t), math.sin(self.omega_squared * t)
        lag = velocity / self.omega_squared
        u, w = q - slow, p - lag
        return slow + t * velocity + c * u + s * w, c * w - s * u + lag

    def mean_force(self, slow: Array, q: Array, p: Array, t: float) -> Array:
        """Q + Ω²(Q − q̄) with the mean q̄ of (1.44)."""
        angle = self.omega_squared * t
        mean = slow + ((q - slow) * math.sin(angle) + p * (1 - math.cos(angle))) / angle
        return slow + self.omega_squared * (slow - mean)


def reversible_averaging(state: State, fast: FastMotion, h: float, drift: bool, mass: float | Array = 1.0) -> State:
    """One step of (Q, P, q, p): RA-1 if the slow position drifts during the fast motion, RA-0 if not.

    Reversible in time; not symplectic in general.
    """
    slow, momentum, q, p = state
    momentum = momentum - h / 2 * fast.mean_force(slow, q, p, h)
    velocity = momentum / mass
    if drift:
        q, p = fast.flow(slow, velocity, q, p, h)
    else:
        q, p = fast.flow(slow + h / 2 * velocity, 0.0 * velocity, q, p, h)
    slow = slow + h * velocity
    momentum = momentum - h / 2 * fast.mean_force(slow, q, p, -h)
    return slow, momentum, q, p
