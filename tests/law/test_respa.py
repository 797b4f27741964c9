"""Multiple time-stepping on Hamiltonians: the thesis's algorithms, order, reversal, area, resonances (1.2.3)."""

import numpy as np
import pytest
import torch

from holonom.multirate import averaging, mts, resonance
from tests import multirate_oracle as oracle

OMEGA = 3.0


def slow_slope(q):
    return (torch if isinstance(q, torch.Tensor) else np).sin(q) + 0.3 * q


def fast_slope(q):
    return 9 * q + q**3


def energy(q, p):
    potential = 1 - np.cos(q) + 0.15 * q**2 + 4.5 * q**2 + q**4 / 4
    return np.sum(p**2 / 2 + potential)


def thermal(normals, friction=0.8, temperature=0.5):
    draws = iter(normals)
    return mts.thermal_drift(friction, temperature, lambda: next(draws))


def respa(substeps, inner=None):
    return mts.respa(slow_slope, mts.respa(fast_slope, inner or mts.drift()), substeps)


START = np.array([0.7, -0.4]), np.array([0.2, 0.9])


# ── r-RESPA ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("k", [1, 4])
def test_respa_is_algorithm_1_1(k):
    mass = np.array([2.0, 0.5])
    flow = mts.respa(slow_slope, mts.respa(fast_slope, mts.drift(mass)), k)
    x = y = START
    for _ in range(5):
        x, y = flow(*x, 0.2), oracle.respa(*y, slow_slope, fast_slope, 0.2, k, mass)
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-14)


def test_langevin_respa_is_algorithm_1_2():
    normals = np.random.default_rng(0).standard_normal((4, 2))
    found = respa(4, thermal(normals))(*START, 0.2)
    wanted = oracle.langevin_respa(*START, slow_slope, fast_slope, 0.2, 4, 0.8, 0.5, normals)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14)


def test_it_runs_on_torch():
    q, p = respa(3)(*map(torch.from_numpy, START), 0.2)
    np.testing.assert_allclose((q, p), respa(3)(*START, 0.2), rtol=0, atol=1e-15)


def final_error(flow, steps, time=1.0):
    x = START
    for _ in range(steps):
        x = flow(*x, time / steps)
    exact = START
    fine = respa(8)
    for _ in range(2000):
        exact = fine(*exact, time / 2000)
    return np.abs(np.subtract(x, exact)).max()


@pytest.mark.parametrize("k", [1, 3])
def test_respa_is_of_second_order(k):
    errors = [final_error(respa(k), steps) for steps in (20, 40, 80)]
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 2, atol=0.05)


def test_three_scales_nest():
    """Verlet's method inside r-RESPA inside r-RESPA: still second order."""
    parts = [lambda q: 0.3 * q, np.sin, fast_slope]
    nested = mts.respa(parts[0], mts.respa(parts[1], mts.respa(parts[2], mts.drift()), 2), 3)
    errors = [final_error(nested, steps) for steps in (20, 40)]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.05)


def test_respa_is_reversible_and_keeps_the_energy():
    flow, x = respa(4), START
    energies = []
    for _ in range(2000):
        x = flow(*x, 0.15)
        energies.append(energy(*x))
    assert np.ptp(energies) < 0.02 * energy(*START)
    assert abs(np.mean(energies[:500]) - np.mean(energies[-500:])) < 0.005 * energy(*START)  # no drift
    x = x[0], -x[1]
    for _ in range(2000):
        x = flow(*x, 0.15)
    np.testing.assert_allclose(x[0], START[0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(x[1], -START[1], rtol=0, atol=1e-9)


def test_respa_is_symplectic():
    """JᵀΩJ = Ω for the Jacobian of a step on a coupled, anharmonic system."""

    def step(x):
        def slow(q):
            return torch.sin(q) + 0.4 * q.sum() * torch.ones_like(q)

        def fast(q):
            return 9 * q + (q[0] * q[1]) * q.flip(0)

        return torch.cat(mts.respa(slow, mts.respa(fast, mts.drift()), 3)(x[:2], x[2:], 0.3))

    jacobian = torch.func.jacrev(step)(torch.from_numpy(np.concatenate(START)))
    area = torch.zeros(4, 4, dtype=torch.float64)
    area[:2, 2:], area[2:, :2] = torch.eye(2), -torch.eye(2)
    torch.testing.assert_close(jacobian.T @ area @ jacobian, area, rtol=0, atol=1e-13)


# ── resonances ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("h", [0.1, 0.9, 2.5])
def test_the_map_of_respa_is_the_thesis_s(h):
    found = resonance.respa_map(h, OMEGA)
    np.testing.assert_allclose(found, oracle.respa_matrix(h, OMEGA), rtol=0, atol=1e-14)
    assert np.linalg.det(found) == pytest.approx(1, abs=1e-13)
    assert np.trace(found) == pytest.approx(2 * np.cos(OMEGA * h) - h / OMEGA * np.sin(OMEGA * h), abs=1e-14)
    many = resonance.respa_map(h, OMEGA, substeps=20_000)
    np.testing.assert_allclose(many, found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_respa_resonates_just_below_multiples_of_pi_over_omega(k):
    """Fig. 1.9: |λ| = 1 except in an interval that ends at h = kπ/Ω and grows with k."""
    at = k * np.pi / OMEGA
    hs = np.linspace(at - np.pi / OMEGA, at, 2001)[1:-1]
    unstable = np.array([resonance.spectral_radius(resonance.respa_map(h, OMEGA)) > 1 + 1e-9 for h in hs])
    first = unstable.argmax()
    assert first > 0
    assert unstable[first:].all()
    width = at - hs[first]
    # 2cos Ωh − (h/Ω) sin Ωh = ±2 where tan(Ω(kπ/Ω − h)/2) = h/(2Ω).
    assert np.tan(OMEGA * width / 2) == pytest.approx(hs[first] / (2 * OMEGA), rel=0.01)
    just_above = resonance.spectral_radius(resonance.respa_map(at + 1e-3, OMEGA))
    assert just_above == pytest.approx(1, abs=1e-9)


def test_friction_removes_the_resonance():
    """Fig. 1.10 without a sample: the first resonance diverges without friction enough, and is bounded with it."""
    inside = np.pi / OMEGA - 0.05
    weak, strong = (resonance.langevin_respa_map(inside, OMEGA, friction, 8) for friction in (0.01, 2.0))
    assert np.isinf(resonance.stationary_covariance(*weak)).all()
    assert np.isfinite(resonance.stationary_covariance(*strong)).all()


def test_langevin_respa_samples_the_right_variance_for_small_steps():
    """(1.39): ⟨q²⟩ = τ/(1 + Ω²), with an error of second order; ⟨p²⟩ = τ."""
    errors = []
    for h in (0.2, 0.1, 0.05):
        covariance = resonance.stationary_covariance(*resonance.langevin_respa_map(h, OMEGA, 1.0, 4))
        errors.append(abs(covariance[0, 0] * (1 + OMEGA**2) - 1))
        assert covariance[1, 1] == pytest.approx(1, abs=h**2)
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 2, atol=0.1)


def test_the_covariance_is_the_one_that_stays():
    m, n = resonance.langevin_respa_map(0.3, OMEGA, 1.0, 2)
    s = resonance.stationary_covariance(m, n)
    np.testing.assert_allclose(m @ s @ m.T + n @ n.T, s, rtol=0, atol=1e-14)


# ── reversible averaging ─────────────────────────────────────────────────────────────────────────


def pair_slow(slow, q):
    return slow + 10 * (slow - q) + slow**3


def pair_fast(slow, q):
    return 10 * (q - slow) + q**3


PAIR = (0.5, -0.3, 0.7, 0.1)


@pytest.mark.parametrize("drift", [False, True], ids=["RA-0", "RA-1"])
def test_reversible_averaging_is_algorithms_1_3_and_1_4(drift):
    fast = averaging.Substeps(pair_slow, pair_fast, 5, mass=0.1)
    x = y = PAIR
    for _ in range(5):
        x = averaging.reversible_averaging(x, fast, 0.2, drift, mass=2.0)
        y = oracle.reversible_averaging(*y, pair_slow, pair_fast, 0.2, 5, drift, slow_mass=2.0, mass=0.1)
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-14)


@pytest.mark.parametrize("drift", [False, True], ids=["RA-0", "RA-1"])
def test_reversible_averaging_is_reversible(drift):
    fast = averaging.Substeps(pair_slow, pair_fast, 5, mass=0.1)
    x = PAIR
    for _ in range(100):
        x = averaging.reversible_averaging(x, fast, 0.1, drift)
    x = x[0], -x[1], x[2], -x[3]
    for _ in range(100):
        x = averaging.reversible_averaging(x, fast, 0.1, drift)
    np.testing.assert_allclose(x, (PAIR[0], -PAIR[1], PAIR[2], -PAIR[3]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("drift", [False, True], ids=["RA-0", "RA-1"])
def test_reversible_averaging_is_of_second_order(drift):
    """On the model problem, whose flow is a matrix exponential."""
    w = 10.0
    field = np.array([[0, 0, 1, 0], [0, 0, 0, w], [-1 - w, w, 0, 0], [w, -w, 0, 0]])
    values, vectors = np.linalg.eig(field)

    def error(h):
        exact = (vectors @ np.diag(np.exp(values)) @ np.linalg.inv(vectors)).real
        step = resonance.reversible_averaging_map(h, w, drift)
        return np.abs(np.linalg.matrix_power(step, round(1 / h)) - exact).max()

    errors = [error(h) for h in (1 / 40, 1 / 80, 1 / 160)]
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 2, atol=0.05)


@pytest.mark.parametrize("drift", [False, True], ids=["RA-0", "RA-1"])
@pytest.mark.parametrize("h", [0.1, 0.55, 1.7])
def test_the_maps_of_reversible_averaging_are_the_thesis_s(h, drift):
    found = resonance.reversible_averaging_map(h, 10.0, drift)
    np.testing.assert_allclose(found, oracle.averaging_matrix(h, 10.0, drift), rtol=0, atol=1e-12)


@pytest.mark.parametrize("drift", [False, True], ids=["RA-0", "RA-1"])
def test_substeps_converge_to_the_exact_fast_motion(drift):
    w, h = 10.0, 0.3
    start = np.eye(4)
    fast = averaging.Substeps(lambda slow, q: slow + w * (slow - q), lambda slow, q: w * (q - slow), 4000, mass=1 / w)
    after = averaging.reversible_averaging((start[0], start[2], start[1], start[3]), fast, h, drift)
    exact = resonance.reversible_averaging_map(h, w, drift)
    np.testing.assert_allclose(np.stack([after[0], after[2], after[1], after[3]]), exact, rtol=0, atol=1e-5)


def test_drift_removes_the_resonances_of_averaging():
    """Figs. 1.12–1.14, Ω² = 10, where the slow variables alone are stable (h < 2): |λ| = 1 for RA-1, not for RA-0."""

    def moduli(h, drift):
        return np.abs(resonance.eigenvalues(resonance.reversible_averaging_map(h, 10.0, drift)))

    for h in np.linspace(0.005, 1.97, 400):
        np.testing.assert_allclose(moduli(h, drift=True), 1, rtol=0, atol=1e-9)
    for turns, growth in ((0.7, 1.0), (0.9, 1.1), (1.0, 1.0), (1.8, 1.5), (2.0, 1.0), (2.75, 1.5)):
        # The fast motion turns by Ω²h; RA-0 resonates when it has almost come full circle.
        largest = moduli(2 * np.pi * turns / 10, drift=False).max()
        assert largest == pytest.approx(1, abs=1e-9) if growth == 1 else largest > growth


def test_eigenvalues_come_by_argument():
    found = resonance.eigenvalues(resonance.reversible_averaging_map(0.2, 10.0, True))
    assert (np.diff(np.angle(found)) > 0).all()
    np.testing.assert_allclose(found, found[::-1].conj(), rtol=0, atol=1e-12)


def test_no_substeps_are_refused():
    with pytest.raises(ValueError, match="substeps"):
        mts.respa(slow_slope, mts.drift(), 0)
