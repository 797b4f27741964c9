"""Where multiple time-stepping resonates: the linear maps of the thesis's model Hamiltonians (Figs. 1.9–1.14).

On a quadratic Hamiltonian a step is a matrix. Fed with unit vectors, all at once, it returns its columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .averaging import HarmonicPair, reversible_averaging
from .mts import drift, harmonic, respa, thermal_drift

Matrix = NDArray[np.float64]


def respa_map(h: float, omega: float, substeps: int | None = None) -> Matrix:
    """r-RESPA on U_F = ½Ω²q², U_S = ½q² (Example 1.2.2), (q, p) ↦ (q, p): the matrix of (1.35).

    The fast motion is exact, or Verlet's in ``substeps``. det = 1 and, with the exact one,
    λ₁ + λ₂ = 2cos Ωh − (h/Ω) sin Ωh: unstable just below every h = kπ/Ω.
    """
    inner = harmonic(omega) if substeps is None else respa(lambda q: omega**2 * q, drift())
    flow = respa(lambda q: q, inner, substeps or 1)
    q, p = np.eye(2)
    return np.stack(flow(q, p, h))


def langevin_respa_map(h: float, omega: float, friction: float, substeps: int = 1) -> tuple[Matrix, Matrix]:
    """Algorithm 1.2 on the same potentials at τ = 1: x ↦ Mx + NR with x = (q, p) and R the step's normals."""
    unit = np.eye(2 + substeps)
    draws = iter(unit[2:])
    inner = respa(lambda q: omega**2 * q, thermal_drift(friction, 1.0, lambda: next(draws)))
    after = np.stack(respa(lambda q: q, inner, substeps)(unit[0], unit[1], h))
    return after[:, :2], after[:, 2:]


def reversible_averaging_map(h: float, omega_squared: float, drift: bool) -> Matrix:
    """RA-0 (``drift=False``) or RA-1 on Example 1.2.4, (Q, q, P, p) ↦ (Q, q, P, p), the fast motion exact (1.48)."""
    slow, q, momentum, p = np.eye(4)
    after = reversible_averaging((slow, momentum, q, p), HarmonicPair(omega_squared), h, drift)
    return np.stack([after[0], after[2], after[1], after[3]])


def eigenvalues(matrix: Matrix) -> NDArray[np.complex128]:
    """By argument: Fig. 1.13 and 1.14 show the arguments, Fig. 1.9 and 1.12 the moduli."""
    found = np.linalg.eigvals(matrix).astype(np.complex128)
    return found[np.lexsort((np.abs(found), np.angle(found)))]


def spectral_radius(matrix: Matrix) -> float:
    """The largest |λ|: above 1 the step is unstable."""
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def stationary_covariance(matrix: Matrix, noise: Matrix) -> Matrix:
    """S = MSMᵀ + NNᵀ, the law a stable noisy step settles to: Fig. 1.10 without a sample. Infinite if unstable."""
    if spectral_radius(matrix) >= 1:
        return np.full_like(matrix, np.inf)
    size = len(matrix)
    system = np.eye(size**2) - np.kron(matrix, matrix)
    return np.linalg.solve(system, (noise @ noise.T).reshape(-1)).reshape(size, size)
