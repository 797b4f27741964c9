"""LevelSet: the sampled law is exp(−U/τ) times the surface measure, here arc length on an ellipse.

The measure is a real choice: a naive limit of a stiff penalty gives arc length divided by |∇g|, and a naive
parametrisation gives the angle. On x²/a² + y²/b² = 1 the three differ by several per cent in E x², which the
test checks to be more than it can miss. Expectations are sums over an equidistant grid of the angle t, which
for periodic functions converge exponentially; U = c·x has no symmetry.

With slack, g(q) + ξ² = 0 is a surface one dimension up, here an ellipsoid seen from above, and its area is
the measure.

With both, here w₀ + w₁ = 1 and w ≥ 0, the constraints (w₀, 1 − w₀, √w₀, √(1 − w₀)) leave a curve, whose length is the
measure: with w₀ = sin²φ, √(1 + 8 w₀w₁) dφ. Between the uniform law of w₀ and the arcsine law, and neither.

Chains start in the law itself (points of the quadrature, drawn with its weights), get about a relaxation
time to leave it if it is not theirs, and are then averaged. Biases: second order for BAOAB; first order in
the squared noise per step, 2τh, for both projections of L.
"""

import numpy as np
import pytest
import torch

from holonom.constraints import LevelSet
from tests.law.chains import assert_agree, average

A, B, TEMPERATURE = 1.0, 0.7, 0.5
FORCE = torch.tensor([0.3, -0.5], dtype=torch.float64)


def ellipse(x):
    return x[0] ** 2 / A**2 + x[1] ** 2 / B**2 - 1


def arc(power=0.0):
    """Points and weights of exp(−U/τ)|∇g|^power ds on the ellipse."""
    t = 2 * np.pi * (np.arange(400) + 0.5) / 400
    points = np.stack([A * np.cos(t), B * np.sin(t)], 1)
    speed = np.hypot(A * np.sin(t), B * np.cos(t))
    return _tilt(points, speed * np.hypot(points[:, 0] / A**2, points[:, 1] / B**2) ** power)


def cap():
    """The same for the ellipsoid (A sinθ cosφ, B sinθ sinφ, cosθ), whose last coordinate is the slack."""
    z, weight = np.polynomial.legendre.leggauss(60)
    z, t = (x.flatten() for x in np.meshgrid(z, 2 * np.pi * (np.arange(60) + 0.5) / 60, indexing="ij"))
    s = np.sqrt(1 - z * z)
    area = np.sqrt((B * s * np.cos(t)) ** 2 + (A * s * np.sin(t)) ** 2 + (A * B * z) ** 2)
    return _tilt(np.stack([A * s * np.cos(t), B * s * np.sin(t)], 1), area * np.repeat(weight, 60))


def _tilt(points, weights):
    weights = weights * np.exp(-points @ FORCE.numpy() / TEMPERATURE)
    return torch.tensor(points), torch.tensor(weights / weights.sum())


def moments(q, state=None):
    x, y = q.unbind(1)
    return torch.stack([x, y, x * x, x * y, y * y, x**4], 1)


def run(space, points, weights, word, h, burn, steps, chains):
    draw = torch.multinomial(weights, chains, replacement=True, generator=torch.Generator().manual_seed(4))
    averages, _ = average(
        points[draw], FORCE.expand_as, moments, steps=steps, burn=burn, every=2,
        lr=h, scheme=word, temperature=TEMPERATURE, constraint=space, seed=9,
    )  # fmt: skip
    return averages


def test_the_test_can_tell_the_measures_apart():
    points, weights = arc()
    for other in (arc(power=-1.0)[1], arc(power=1.0)[1]):
        assert abs(float((weights - other) @ moments(points)[:, 2])) > 0.04


@pytest.mark.parametrize(
    ("word", "direction", "h", "burn", "steps", "chains", "bias"),
    [
        ("BAOAB", "new", 0.3, 25, 40, 2500, 0.005),
        ("OBA", "new", 0.05, 100, 70, 3500, 0.02),
        ("L", "old", 0.01, 60, 150, 3000, 0.01),
        ("L", "new", 0.01, 60, 100, 2500, 0.01),
    ],
)
def test_an_ellipse_carries_arc_length(word, direction, h, burn, steps, chains, bias):
    points, weights = arc()
    space = LevelSet(ellipse, direction=direction, batch_dims=1)
    averages = run(space, points, weights, word, h, burn, steps, chains)
    expected = weights @ moments(points)
    assert_agree(averages[:, :2], expected[:2], resolution=0.06, bias=bias)  # x and y relax slowest
    assert_agree(averages[:, 2:], expected[2:], resolution=0.03, bias=bias)


def test_slack_adds_a_dimension():
    points, weights = cap()
    inside = weights * (ellipse(points.T) < -0.01)  # chains start away from ξ = 0, where they would be moved inside
    averages = run(LevelSet(ellipse, slack=True, batch_dims=1), points, inside, "BAOAB", 0.3, 25, 50, 2500)
    assert_agree(averages, weights @ moments(points), resolution=0.03, bias=0.005)


def segment():
    """Points and weights of exp(−U/τ) times the length of the lifted segment w₀ + w₁ = 1, w ≥ 0."""
    phi = np.pi * (np.arange(400) + 0.5) / 800
    w = np.sin(phi) ** 2
    return _tilt(np.stack([w, 1 - w], 1), np.sqrt(1 + 8 * w * (1 - w)))


def test_the_test_can_tell_the_laws_of_a_segment_apart():
    points, weights = segment()
    w = points[:, 0].numpy()
    for density in (np.sqrt(w * (1 - w)), np.ones(400)):  # uniform in w₀; in φ, the arcsine law
        other = _tilt(points.numpy(), density)[1]
        assert abs(float((weights - other) @ points.prod(1))) > 0.013


@pytest.mark.parametrize(("word", "h", "burn", "steps"), [("BAOAB", 0.15, 20, 40), ("L", 0.004, 40, 80)])
def test_a_segment_with_bounds_carries_the_length_of_its_lift(word, h, burn, steps):
    points, weights = segment()
    inside = weights * ((points > 0.002).all(1))  # nearer the ends they would be moved inside
    space = LevelSet(lambda w: w.sum() - 1, inequalities=lambda w: -w, batch_dims=1)
    averages = run(space, points, inside, word, h, burn, steps, 1600)
    expected = weights @ moments(points)
    assert_agree(averages[:, :1], expected[:1], resolution=0.04, bias=0.003)
    assert_agree(averages[:, 3:4], expected[3:4], resolution=0.01, bias=0.003)
