"""Circle: the angle of a weight θ = r sin φ has density ∝ exp(−U(r sin φ)/τ), and θ the law that follows.

With U = 0 the angle is uniform, so θ/r has the arcsine law: E θ² = r²/2, E θ⁴ = 3r⁴/8. Every word is exact
here at any step size, because the rotation, the radial projection and the noise are all invariant under
rotations: the bias is zero and the steps may be large.

With U = aθ the angle from the bottom, ψ = φ + π/2, is von Mises with concentration κ = ar/τ:
E cos nψ = I_n(κ)/I_0(κ). The potential has no symmetry in θ, so a wrong sign anywhere shows in E θ. BAOAB's
bias is of second order in h, that of L, OBA and ABO of first order: they get a small step, and an allowance
of h/2 (in units of r, r², …).
"""

import math

import pytest
import torch
from scipy.special import ive
from scipy.stats import kstest

from holonom.constraints import Circle
from tests.law.chains import assert_agree, average

CHAINS, RADIUS, TEMPERATURE = 20_000, 0.7, 0.5

# word: (h without potential; with potential: h, burn-in time, run time, allowed bias)
WORDS = {
    "BAOAB": (0.6, 0.15, 12, 12, 0.001),
    "OBA": (0.6, 0.03, 12, 12, 0.015),
    "ABO": (0.6, 0.03, 12, 12, 0.015),
    "L": (0.3, 0.02, 8, 8, 0.01),
}


def run(word, h, slope, burn, steps, every):
    start = torch.full((CHAINS,), 0.3 * RADIUS, dtype=torch.float64)

    def powers(q, state):
        x = q / RADIUS
        return torch.stack([x, x**2, x**3, x**4, torch.cos(2 * math.pi * state["turns"])], 1)

    return average(
        start, lambda q: torch.full_like(q, slope), powers, steps=steps, burn=burn, every=every,
        lr=h, scheme=word, temperature=TEMPERATURE, constraint=Circle(RADIUS), seed=3,
    )  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_without_a_potential_a_weight_has_the_arcsine_law(word):
    averages, final = run(word, WORDS[word][0], slope=0.0, burn=40, steps=60, every=3)
    assert_agree(averages, [0, 1 / 2, 0, 3 / 8, 0], resolution=0.01)
    # The final weights are independent draws; Kolmogorov–Smirnov at 1e-6 resolves 2.7/√n = 0.019 in the distribution.
    assert kstest((final / RADIUS).numpy(), "arcsine", args=(-1, 2)).pvalue > 1e-6


@pytest.mark.parametrize("word", WORDS)
def test_with_a_linear_potential_the_angle_is_von_mises(word):
    _, h, burn, time, bias = WORDS[word]
    slope = 1.2
    kappa = slope * RADIUS / TEMPERATURE
    mean = [ive(n, kappa) / ive(0, kappa) for n in range(5)]
    # cosψ = −sinφ, and powers of cosψ from its harmonics.
    powers = [-mean[1], (1 + mean[2]) / 2, -(3 * mean[1] + mean[3]) / 4, (3 + 4 * mean[2] + mean[4]) / 8, 0]
    averages, _ = run(word, h, slope, burn=int(burn / h), steps=int(time / h), every=max(1, int(0.3 / h)))
    assert_agree(averages, powers, resolution=0.01, bias=bias)
