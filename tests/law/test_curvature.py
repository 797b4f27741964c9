"""The curvature of a boundary against curves whose curvature is known."""

import math

import numpy as np
import pytest
import torch

from holonom.metrics import boundary_curvature, boundary_curvatures, curvature_summary, mean_curvature

EXACT = {"dtype": torch.float64}


def disc(radius, steepness=8.0):
    return lambda x: torch.sigmoid(steepness * (radius - x.norm(dim=1)))


@pytest.mark.parametrize("radius", [0.2, 0.7, 1.3])
@pytest.mark.parametrize("steepness", [2.0, 8.0, 300.0])
def test_a_circle_bends_by_one_over_its_radius(radius, steepness):
    bend = boundary_curvature(disc(radius, steepness), grid=400, **EXACT)
    assert len(bend) > 300 * radius
    np.testing.assert_allclose(bend * radius, 1, atol=5e-4)


def test_single_precision_is_good_to_a_percent_at_every_point():
    bend = boundary_curvature(disc(0.7), grid=1000)
    np.testing.assert_allclose(bend * 0.7, 1, atol=0.02)
    assert mean_curvature(bend) == pytest.approx(1 / 0.7, rel=1e-3)


def test_the_error_falls_with_the_square_of_the_spacing():
    errors = [np.abs(boundary_curvature(disc(0.7), grid=n, **EXACT) * 0.7 - 1).mean() for n in (101, 201, 401)]
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    np.testing.assert_allclose(orders, 2, atol=0.2)


def test_an_ellipse_bends_by_its_formula():
    a, b = 1.2, 0.5
    bend = boundary_curvature(lambda x: (x[:, 0] / a) ** 2 + (x[:, 1] / b) ** 2, grid=1000, level=1.0, **EXACT)
    # κ(t) = ab / (a² sin²t + b² cos²t)^{3/2}, between b/a² at the flat side and a/b² at the tip
    assert bend.min() == pytest.approx(b / a**2, rel=1e-3)
    assert bend.max() == pytest.approx(a / b**2, rel=1e-3)
    t = np.linspace(0, 2 * np.pi, 100_001)
    kappa = a * b / ((a * np.sin(t)) ** 2 + (b * np.cos(t)) ** 2) ** 1.5
    assert bend.min() < np.median(bend) < bend.max()
    # A contour point sits on every grid line it crosses: |dx| + |dy| of them on a stretch of the curve.
    density = a * np.abs(np.sin(t)) + b * np.abs(np.cos(t))
    assert mean_curvature(bend) == pytest.approx((kappa * density).sum() / density.sum(), rel=1e-2)


@pytest.mark.parametrize("grid", [200, 201, 400, 1600])
def test_a_corner_of_a_relu_network_turns_by_about_its_angle(grid):
    """The boundary y = s|x| is straight but for one corner of 2 atan(s); ∫|κ|ds stays near it on every grid."""
    slope, spacing = 0.75, 3 / (grid - 1)
    bend = boundary_curvature(lambda x: x[:, 1] - slope * (x[:, 0] - 0.005).abs(), grid=grid, level=0.0, **EXACT)
    assert (bend > 1e-6).sum() <= 5
    assert bend.max() <= 1 / spacing
    between_points = spacing * math.hypot(1, slope) / (1 + slope)
    assert 0.5 < bend.sum() * between_points / (2 * math.atan(slope)) < 1.5


def test_straight_boundaries_do_not_bend():
    bend = boundary_curvature(lambda x: torch.sigmoid(3 * x[:, 0] - 2 * x[:, 1] + 0.1), grid=300, **EXACT)
    assert len(bend) > 290
    assert bend.max() < 1e-8


def test_probabilities_and_their_logits_have_one_boundary():
    def logit(x):
        return 20 * (x[:, 0] ** 2 + x[:, 0] * x[:, 1] + 2 * x[:, 1] ** 2 - 0.8)

    by_probability = boundary_curvature(lambda x: logit(x).sigmoid(), grid=300, **EXACT)
    np.testing.assert_allclose(by_probability, boundary_curvature(logit, grid=300, level=0.0, **EXACT), rtol=1e-5)


def test_the_thesis_formula_equals_its_transcription():
    """(4.60) on contour points, differences by hand; and it does not converge on a circle."""
    from contourpy import contour_generator

    grid = 120
    axis = np.linspace(-1.5, 1.5, grid)
    field = axis[None, :] ** 2 + 2 * axis[:, None] ** 2
    (line,) = contour_generator(axis, axis, field).lines(1.0)

    def derivative(v):
        inner = [(v[i + 1] - v[i - 1]) / 2 for i in range(1, len(v) - 1)]
        return np.array([-1.5 * v[0] + 2 * v[1] - 0.5 * v[2], *inner, 1.5 * v[-1] - 2 * v[-2] + 0.5 * v[-3]])

    x, y = line[:, 0], line[:, 1]
    dx, dy = derivative(x), derivative(y)
    expected = np.abs(derivative(dx) * dy - dx * derivative(dy)) / (dx**2 + dy**2) ** 1.5
    ours = boundary_curvature(lambda p: p[:, 0] ** 2 + 2 * p[:, 1] ** 2, grid=grid, level=1.0, method="points", **EXACT)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    rough = boundary_curvature(disc(0.7), grid=1000, method="points", **EXACT) * 0.7
    assert rough.mean() > 1.1
    assert rough.max() > 10


def test_classifiers_together_equal_classifiers_alone():
    radii = torch.tensor([0.3, 5.0, 0.9])

    def together(x):
        return torch.sigmoid(6 * (radii[:, None].to(x) - x.norm(dim=1)))

    all_at_once = boundary_curvatures(together, grid=150, chunk=77, **EXACT)
    alone = [boundary_curvature(disc(float(r), 6.0), grid=150, **EXACT) for r in radii]
    for batched, single in zip(all_at_once, alone, strict=True):
        np.testing.assert_allclose(batched, single, rtol=1e-6)
    assert len(all_at_once[1]) == 0
    summary = curvature_summary(all_at_once)
    assert summary.classifiers == 2
    assert summary.without == 1
    assert summary.mean == pytest.approx((1 / 0.3 + 1 / 0.9) / 2, rel=2e-3)
    assert summary.max == pytest.approx(1 / 0.3, rel=5e-3)


def test_no_boundary_is_no_point_and_no_number():
    bend = boundary_curvature(lambda x: torch.full((len(x),), 0.9), grid=50)
    assert bend.shape == (0,)
    assert math.isnan(mean_curvature(bend))


def test_two_boundaries_are_both_seen():
    def rings(x):
        r = x.norm(dim=1)
        return (r - 0.5) * (r - 1.0)

    bend = boundary_curvature(rings, grid=400, level=0.0, **EXACT)
    near = np.minimum(np.abs(bend - 2.0), np.abs(bend - 1.0))
    assert near.max() < 1e-2
    assert 0.4 < (bend > 1.5).sum() / (bend < 1.5).sum() < 0.6


@pytest.mark.parametrize(
    ("predict", "options", "message"),
    [
        (lambda x: x, {}, "predict gave shape"),
        (lambda x: x[:5, 0], {}, "predict gave shape"),
        (lambda x: x[:, 0] / 0, {}, "NaN or infinite"),
        (lambda x: x.T, {}, "use boundary_curvatures"),
        (lambda x: x[:, 0], {"bounds": (1.0, -1.0)}, "bounds"),
        (lambda x: x[:, 0], {"grid": 2}, "grid"),
        (lambda x: x[:, 0], {"chunk": 0}, "chunk"),
        (lambda x: x[:, 0], {"method": "spline"}, "method"),
    ],
)
def test_bad_input_says_what_is_wrong(predict, options, message):
    with pytest.raises(ValueError, match=message):
        boundary_curvature(predict, **{"grid": 20, **options})


def test_one_classifier_is_not_several():
    with pytest.raises(ValueError, match="must give"):
        boundary_curvatures(lambda x: x[:, 0], grid=20)
