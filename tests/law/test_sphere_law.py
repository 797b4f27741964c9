"""Sphere: rows are uniform without a potential and von Mises–Fisher with a linear one.

A row x on the sphere of radius r in d dimensions has E x_i² = r²/d, E x_i⁴ = 3r⁴/(d(d+2)) and
E x_i²x_j² = r⁴/(d(d+2)). Great circles, radial projection and noise are invariant under rotations, so this
holds at any step size. With U = b·x the law is von Mises–Fisher, density ∝ exp(−b·x/τ), with κ = ‖b‖r/τ:

    E x = −r A_d(κ) b/‖b‖,   A_d = I_{d/2}(κ)/I_{d/2−1}(κ),   E (b·x)²/‖b‖² = r² (1 − (d−1) A_d/κ).

With a slack variable the row and its slack are one vector: the same laws, one dimension up, seen through
the first coordinates. The bias with a potential is of second order for BAOAB and of first order for the
others; what is allowed is h/2 for those.
"""

import pytest
import torch
from scipy.special import ive

from holonom.constraints import Sphere
from tests.law.chains import assert_agree, average

CHAINS, DIM, RADIUS, TEMPERATURE = 5_000, 3, 0.8, 0.5
FORCE = torch.tensor([0.9, -0.6, 0.2], dtype=torch.float64)

# word: (h without potential; with potential: h, burn-in time, run time, allowed bias)
WORDS = {
    "BAOAB": (0.6, 0.15, 10, 12, 0.001),
    "BAAOAAB": (0.6,),
    "OBA": (0.6, 0.03, 10, 10, 0.015),
    "ABO": (0.6, 0.03, 10, 10, 0.015),
    "L": (0.2, 0.02, 5, 12, 0.01),
}
CASES = [(word, slack) for word in ("BAOAB", "L") for slack in (False, True)]


def run(word, slack, h, force, observe, burn, steps, every):
    start = torch.zeros(CHAINS, DIM, dtype=torch.float64)
    start[:, 0] = 0.5 * RADIUS if slack else RADIUS

    def moments(q, state):
        x = torch.cat([q, state["slack"]], 1) if slack else q
        return observe(x / RADIUS)

    averages, _ = average(
        start, lambda q: force.expand_as(q), moments, steps=steps, burn=burn, every=every,
        lr=h, scheme=word, temperature=TEMPERATURE, constraint=Sphere(RADIUS, slack=slack), seed=5,
    )  # fmt: skip
    return averages


@pytest.mark.parametrize(("word", "slack"), [*CASES, ("BAAOAAB", True), ("OBA", True), ("ABO", False)])
def test_without_a_potential_rows_are_uniform(word, slack):
    def observe(x):
        square = x.square()
        return torch.cat([x, square, square.square(), square * square.roll(1, 1)], 1)

    h, d = WORDS[word][0], DIM + slack
    averages = run(word, slack, h, torch.zeros_like(FORCE), observe, burn=60, steps=150 if word == "L" else 80, every=3)
    each = [0.0, 1 / d, 3 / (d * (d + 2)), 1 / (d * (d + 2))]
    assert_agree(averages, [value for value in each for _ in range(d)], resolution=0.01)


@pytest.mark.parametrize(("word", "slack"), [*CASES, ("OBA", False), ("ABO", True)])
def test_with_a_linear_potential_rows_are_von_mises_fisher(word, slack):
    d = DIM + slack
    axis = torch.zeros(d, dtype=torch.float64)
    axis[:DIM] = FORCE / FORCE.norm()
    kappa = float(FORCE.norm()) * RADIUS / TEMPERATURE
    mean = ive(d / 2, kappa) / ive(d / 2 - 1, kappa)
    second = 1 - (d - 1) * mean / kappa
    # Across the axis the law is symmetric: E x xᵀ = second·bbᵀ + (1 − second)/(d − 1)·(I − bbᵀ).
    along = torch.outer(axis, axis)
    covariance = second * along + (1 - second) / (d - 1) * (torch.eye(d) - along)

    def observe(x):
        return torch.cat([x, (x[:, :, None] * x[:, None, :]).flatten(1)], 1)

    _, h, burn, time, bias = WORDS[word]
    every = max(1, int(0.3 / h))
    averages = run(word, slack, h, FORCE, observe, burn=int(burn / h), steps=int(time / h), every=every)
    assert_agree(averages, torch.cat([-mean * axis, covariance.flatten()]), resolution=0.015, bias=bias)
