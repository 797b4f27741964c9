"""Energy at τ = 0, γ = 0 stays within O(h²) of its start for all times: BAOAB is then symplectic on the manifold.

A symplectic, reversible map conserves a nearby energy H + h²H₂ + …, so H − H(0) oscillates in a band of
width O(h²) and does not drift. Checked on a long orbit: the band, that the late band is not wider than the
early one, and that halving h makes it four times thinner. A method that loses or gains energy at each step
(a momentum not made tangent, a projection that shortens) leaves any band linearly in time.
"""

import pytest

from tests.law.mechanics import NAMES, Motion


def band(name, h, steps):
    """Largest |H − H(0)| in the first and in the last fifth of an orbit."""
    motion = Motion(name, h)
    start = motion.energy()
    errors = []
    for _ in range(steps):
        motion.step()
        errors.append(abs(motion.energy() - start))
    fifth = steps // 5
    return max(errors[:fifth]), max(errors[-fifth:])


@pytest.mark.parametrize("name", NAMES)
def test_energy_does_not_drift(name):
    steps = 100 if "level" in name else 1000
    early, late = band(name, 0.1, steps)
    assert early < 0.05  # about 5h²
    assert late < 1.3 * early


@pytest.mark.parametrize("name", NAMES)
def test_the_band_is_of_second_order(name):
    steps = 20 if "level" in name else 100
    coarse, fine = band(name, 0.1, steps)[0], band(name, 0.05, 2 * steps)[0]
    assert coarse / fine == pytest.approx(4, rel=0.15)
