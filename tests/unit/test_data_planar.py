"""Spirals and waves lie on the curves of (3.32) and (3.33), half of the points on each; circles, and quadrants."""

import math

import numpy as np
import pytest
import torch

from holonom.data import circles, spirals, trigonometric, xor


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("turns", "scale", "power"), [(2.0, 1.0, 0.5), (4.0, 2.0, 0.5), (4.0, 2.0, 1.0)])
def test_spirals_without_noise_solve_their_equation(turns: float, scale: float, power: float) -> None:
    x, y = spirals(400, turns=turns, scale=scale, power=power, noise=0.0, generator=seeded())
    points, labels = x.double().numpy(), y.numpy()
    radius = np.hypot(points[:, 0], points[:, 1]) / scale  # tᵖ
    angle = 2 * turns * radius * math.pi + math.pi * labels
    expected = scale * radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    np.testing.assert_allclose(points, expected, atol=2e-5)
    assert labels.sum() == 200
    # t is uniform, whatever the power: its mean and variance are 1/2 and 1/12.
    time = radius ** (1 / power)
    assert abs(time.mean() - 0.5) < 4 * math.sqrt(1 / 12 / 400)


@pytest.mark.parametrize("per_unit_length", [False, True])
def test_waves_without_noise_solve_their_equation(per_unit_length: bool) -> None:
    x, y = trigonometric(400, length=6.0, frequency=2.0, noise=0.0, per_unit_length=per_unit_length, generator=seeded())
    first, second = x.double().numpy().T
    argument = math.pi * 2.0 * (first if per_unit_length else first / 6.0)
    np.testing.assert_allclose(second, np.where(y.numpy() == 0, np.cos(argument), np.sin(argument)), atol=1e-5)
    assert y.sum() == 200
    assert 0 < first.min() < 0.1
    assert 5.9 < first.max() < 6.0


def test_only_the_second_coordinate_is_noisy() -> None:
    clean, _ = trigonometric(2000, noise=0.0, generator=seeded(3))
    noisy, _ = trigonometric(2000, noise=0.5, generator=seeded(3))
    assert torch.equal(clean[:, 0], noisy[:, 0])
    spread = (noisy - clean)[:, 1].std().item()
    assert abs(spread - 0.5) < 4 * 0.5 / math.sqrt(2 * 2000)


def test_longer_sets_cross_more_often_only_per_unit_length() -> None:
    """cos s = sin s once per half wave: a·b crossings per unit length, b as printed."""

    def crossings(length: float, per_unit_length: bool) -> int:
        x, y = trigonometric(4000, length=length, per_unit_length=per_unit_length, noise=0.0, generator=seeded())
        grid = np.linspace(0, length, 1000)
        waves = []
        for label in (0, 1):
            first, second = x[y == label].numpy().T
            order = first.argsort()
            waves.append(np.interp(grid, first[order], second[order]))
        return int((np.diff(np.sign(waves[0] - waves[1])) != 0).sum())

    assert [crossings(length, False) for length in (6.0, 10.0)] == [1, 1]
    assert [crossings(length, True) for length in (6.0, 10.0)] == [6, 10]


@pytest.mark.parametrize("make", [spirals, trigonometric])
def test_generators_decide_and_the_global_one_stays(make: object) -> None:
    state = torch.get_rng_state()
    one, two, other = make(50, generator=seeded(1)), make(50, generator=seeded(1)), make(50, generator=seeded(2))  # type: ignore[operator]
    assert torch.equal(one[0], two[0])
    assert not torch.equal(one[0], other[0])
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(ValueError, match="at least 2 points, got 1"):
        make(1)  # type: ignore[operator]


def test_circles_have_their_radii() -> None:
    x, y = circles(400, inner=0.3, scale=2.0, noise=0.0, generator=seeded())
    radius = x.double().norm(dim=1)
    assert torch.allclose(radius, torch.where(y == 1, 0.6, 2.0).double(), atol=1e-5)
    assert y.sum() == 200
    assert x.mean(0).abs().max() < 4 * 2.0 / math.sqrt(2 * 400)


def test_the_class_of_xor_is_the_sign_of_the_product() -> None:
    x, y = xor(2000, scale=3.0, noise=0.0, generator=seeded())
    assert torch.equal(y == 1, x.prod(1) < 0)
    assert x.abs().max() <= 3.0
    assert x.abs().max() > 2.9
    assert abs(float(y.mean()) - 0.5) < 4 * 0.5 / math.sqrt(2000)


@pytest.mark.parametrize("draw", [circles, xor])
def test_noise_of_shapes_and_too_few_points(draw) -> None:
    clean, labels = draw(2000, noise=0.0, generator=seeded(3))
    noisy, same = draw(2000, noise=0.5, generator=seeded(3))
    assert torch.equal(labels, same)
    assert abs((noisy - clean).std().item() - 0.5) < 4 * 0.5 / math.sqrt(2 * 4000)
    with pytest.raises(ValueError, match="at least 2 points"):
        draw(1)
