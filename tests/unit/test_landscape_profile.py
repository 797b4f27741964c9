"""Barrier, no barrier, plateau: how a curve is classified, and the numbers that decide."""

import pytest
import torch

from holonom.landscape import classify

X = torch.linspace(0, 1, 51, dtype=torch.float64)


def gap(x, center, width):
    return torch.exp(-(((x - center) / width) ** 2))


def test_monotone_decay_has_no_barrier():
    for curve in (1 - X, (1 - X) ** 2, torch.exp(-8 * X), 2.3 - 2 * X**2):
        profile = classify(X, curve)
        assert profile == "no barrier"
        assert profile.height == 0


def test_a_barrier_has_its_height_and_place():
    profile = classify(X, 1 - X + 0.8 * gap(X, 0.5, 0.05))
    curve = 1 - X + 0.8 * gap(X, 0.5, 0.05)
    top = int(curve.argmax())
    assert profile == "barrier"
    assert profile.place == pytest.approx(float(X[top]))
    assert profile.height == pytest.approx(float(curve[top] - curve[:top].min()))
    assert profile.tolerance == pytest.approx(0.02 * float(curve.max() - curve.min()))
    assert "barrier: height" in repr(profile)


def test_a_barrier_must_be_climbed_from_both_sides():
    assert classify(X, X) == "no barrier"
    assert classify(X, (X - 0.4) ** 2) == "no barrier"  # a valley
    between_minima = classify(X, 0.1 + gap(X, 0.4, 0.2))
    assert between_minima == "barrier"
    lower_side = min(float(gap(X, 0.4, 0.2)[0]), float(gap(X, 0.4, 0.2)[-1]))
    higher_side = max(float(gap(X, 0.4, 0.2)[0]), float(gap(X, 0.4, 0.2)[-1]))
    assert between_minima.height == pytest.approx(1 - higher_side, abs=1e-3)
    assert between_minima.height < 1 - lower_side


def test_direction_does_not_matter():
    curve = 1 - X + 0.8 * gap(X, 0.3, 0.05)
    there, back = classify(X, curve), classify(X, curve.flip(0))
    assert there == back == "barrier"
    assert there.height == pytest.approx(back.height)
    assert there.place == pytest.approx(1 - back.place)


def test_flat_until_near_the_end_is_a_plateau():
    curve = 2.3 * (1 - torch.sigmoid(60 * (X - 0.9)))
    profile = classify(X, curve)
    assert profile == "plateau"
    assert 0.8 < profile.flat < 0.95
    assert classify(X, curve.flip(0)) == "plateau"
    low_and_flat = classify(X, torch.exp(-30 * X))
    assert low_and_flat == "no barrier"
    assert low_and_flat.flat < 0.1


def test_a_flat_line_with_ripples_is_a_plateau():
    ripples = 2.3 + 1e-3 * torch.sin(40 * X)
    profile = classify(X, ripples)
    assert profile == "plateau"
    assert profile.flat == pytest.approx(1)
    assert profile.height == pytest.approx(2e-3, rel=0.05)
    assert classify(X, torch.full_like(X, 0.7)) == "plateau"
    assert classify(X, torch.zeros_like(X)) == "plateau"


def test_the_tolerance_decides():
    curve = 1 - X + 0.1 * torch.sin(2 * torch.pi * 5 * X)
    assert classify(X, curve) == "barrier"
    assert classify(X, curve, tolerance=0.5) == "no barrier"


def test_a_profile_is_a_string():
    profile = classify(X, 1 - X)
    assert isinstance(profile, str)
    assert {profile: 1}["no barrier"] == 1


@pytest.mark.parametrize("points", [X[:2], X[None]])
def test_a_curve_is_needed(points):
    with pytest.raises(ValueError, match="at least 3 points"):
        classify(points, points)
