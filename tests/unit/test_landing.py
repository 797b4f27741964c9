"""Landing: the nearest point of the manifold, said aloud, and nothing at all for weights already there."""

import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch

from holonom import Langevin
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere

from .harness import array, close, parameter

AXES = np.array([1.0, 4.0])


def ellipse(q):
    return (torch.from_numpy(AXES) * q**2).sum(-1) - 1.0


def corner(q):
    """Inside the ellipse and left of a line."""
    return torch.stack([ellipse(q), q[0] - 0.5])


def land(values, space):
    p = parameter(values)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        optimizer = Langevin([p], lr=0.1, constraint=space)
    return p, optimizer, [str(w.message) for w in said]


def nearest_on_ellipse(point):
    """Brute force over the angle, then a bracketed search."""
    angles = np.linspace(-np.pi, np.pi, 4001)

    def distance(t):
        return np.hypot(np.cos(t) - point[0], np.sin(t) / 2 - point[1])

    best = angles[np.argmin(distance(angles))]
    t = scipy.optimize.minimize_scalar(
        distance, bounds=(best - 0.01, best + 0.01), method="bounded", options={"xatol": 1e-12}
    ).x
    return np.array([np.cos(t), np.sin(t) / 2])


def test_circle_lands_strictly_inside():
    p, optimizer, said = land([0.0, 0.3, -0.9985, 1.0, -7.0], Circle(1.0, margin=1e-3))
    close(array(p), [0.0, 0.3, -0.9985, 0.999, -0.999], 1e-15)
    assert said == [
        "weights that did not satisfy their constraint were moved to the nearest point that does "
        "(Circle: 2 of 5 by up to 6, in parameter 0). holonom.init_ starts on the manifold."
    ]
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert (array(p) < [0.0, 0.3, -0.9985, 0.999, -0.999]).all()  # every weight feels its force


def test_circle_with_a_radius_per_weight():
    p, _, said = land([[2.0, 2.0], [-2.0, 0.1]], Circle(torch.tensor([[1.0], [3.0]]), margin=0.5))
    close(array(p), [[0.5, 0.5], [-2.0, 0.1]], 1e-15)
    assert "Circle: 2 of 4 by up to 1.5" in said[0]


@pytest.mark.parametrize("slack", [True, False])
def test_sphere_scales_rows_along_themselves(rng, slack):
    rows = rng.standard_normal((6, 3)) * np.array([0.1, 0.2, 0.4, 1.0, 2.0, 5.0])[:, None]
    p, _, said = land(rows, Sphere(1.0, slack=slack, margin=0.01))
    norms = np.linalg.norm(rows, axis=1)
    wanted = np.minimum(norms, 0.99) if slack else np.ones(6)
    close(array(p), rows * (wanted / norms)[:, None], 1e-15)
    moved = norms != wanted
    assert f"Sphere: {moved.sum()} of 6 by up to {np.abs(norms - wanted).max():.3g}, in parameter 0)" in said[0]


def test_orthogonal_lands_on_the_polar_factor(rng):
    """The nearest orthogonal matrix in Frobenius norm is U of the polar decomposition."""
    weight = rng.standard_normal((5, 3))
    p, _, said = land(weight, Orthogonal())
    polar, _ = scipy.linalg.polar(weight)
    close(array(p), polar, 1e-14)
    assert f"Orthogonal: 1 of 1 by up to {np.linalg.norm(weight - polar):.3g}, in parameter 0)" in said[0]
    others = [np.linalg.qr(polar + 0.1 * rng.standard_normal((5, 3)))[0] for _ in range(50)]
    assert all(np.linalg.norm(weight - polar) < np.linalg.norm(weight - q) for q in others)


@pytest.mark.parametrize("shape", [(3000, 400), (400, 4608)])
def test_large_orthogonal_weights_stay_as_a_qr_decomposition_left_them(rng, shape):
    """In double precision it, and the one that looks, are off by a dozen roundings and more."""
    weight = np.linalg.qr(rng.standard_normal((max(shape), min(shape))))[0]
    weight = weight if shape[0] > shape[1] else np.ascontiguousarray(weight.T)
    p, _, said = land(weight, Orthogonal())
    assert (array(p) == weight).all()
    assert said == []


@pytest.mark.parametrize(("shape", "view"), [((3, 5), None), ((4, 2, 3), "conv"), ((2, 4, 3), "batch")])
def test_orthogonal_lands_in_every_view(rng, shape, view):
    weight = rng.standard_normal(shape)
    p, optimizer, said = land(weight, Orthogonal(view=view))
    matrices = weight if view == "batch" else weight.reshape(1, shape[0], -1)
    close(array(p).reshape(matrices.shape), np.stack([polar(m) for m in matrices]), 1e-14)
    assert f"Orthogonal: {len(matrices)} of {len(matrices)}" in said[0]
    assert optimizer.residuals()[0] < 1e-14


def polar(matrix):
    u, _, vh = np.linalg.svd(matrix, full_matrices=False)
    return u @ vh


@pytest.mark.parametrize("point", [(1.5, 1.0), (0.3, 0.05), (-5.0, 7.0), (0.2, -0.6)])
def test_level_set_lands_on_the_nearest_point(point):
    p, optimizer, said = land(point, LevelSet(ellipse))
    close(array(p), nearest_on_ellipse(point), 1e-6)  # a minimum has half the digits
    normal = AXES * array(p)
    offset = np.array(point) - array(p)
    close(normal[0] * offset[1] - normal[1] * offset[0], 0.0, 1e-13)  # the definition has them all
    assert optimizer.residuals()[0] < 1e-15
    assert len(said) == 1


def test_level_set_says_how_far():
    _, _, said = land((3.0, 0.0), LevelSet(ellipse))
    assert "LevelSet: 1 of 1 by up to 2, in parameter 0)" in said[0]


@pytest.mark.parametrize("point", [(1.5, 1.0), (-2.0, 0.5)])
def test_level_set_with_slack_lands_on_the_nearest_point(point):
    p, _, _ = land(point, LevelSet(ellipse, slack=True))
    close(array(p), nearest_on_ellipse(point), 1e-2)


@pytest.mark.parametrize("point", [(1.0, 0.0), (2.0, 0.0)])
def test_level_set_with_slack_starts_on_its_manifold(point):
    _, optimizer, _ = land(point, LevelSet(ellipse, slack=True))
    assert optimizer.residuals()[0] < 1e-14


def test_level_set_moves_only_blocks_outside():
    blocks = [[0.1, 0.1], [0.0, 0.7], [0.6, 0.1]]
    p, _, said = land(blocks, LevelSet(corner, slack=True, batch_dims=1))
    landed = array(p)
    np.testing.assert_array_equal(landed[0], blocks[0])
    close(landed[1:], [[0.0, np.sqrt(0.999) / 2], [0.499, 0.1]])  # where the violated constraint is −1e-3
    assert "LevelSet: 2 of 3" in said[0]


ON_MANIFOLD = {
    "circle": (np.array([0.0, 0.5, -0.998]), Circle(1.0)),
    "sphere, inside": (np.array([[0.3, 0.4], [0.0, 0.0]]), Sphere(1.0)),
    "sphere": (np.array([[0.6, 0.8], [-0.8, 0.6]]), Sphere(1.0, slack=False)),
    "rounded sphere": (np.array([[0.1, 0.2, 0.3]]) / np.sqrt(0.14), Sphere(1.0, slack=False)),
    "orthogonal": (np.linalg.qr(np.vander(np.arange(1.0, 5.0)))[0][:, :3], Orthogonal()),
    "level set": (np.array([0.6, 0.4]), LevelSet(ellipse)),
    "level set, inside": (np.array([0.3, 0.1]), LevelSet(ellipse, slack=True)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ON_MANIFOLD)
def test_weights_on_the_manifold_are_left_alone_bit_for_bit(case, dtype):
    values, space = ON_MANIFOLD[case]
    p = torch.nn.Parameter(torch.tensor(values, dtype=dtype))
    before = p.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = Langevin([p], lr=0.1, constraint=space)
    assert torch.equal(p, before)
    assert optimizer.residuals()[0] < 20 * torch.finfo(dtype).eps


def test_one_warning_counts_all_groups_by_kind():
    groups = [
        {"params": [parameter([2.0, 0.1]), parameter([0.2])], "constraint": Circle(1.0)},
        {"params": [parameter([[3.0, 4.0]])], "constraint": Sphere(1.0, slack=False)},
        {"params": [parameter([9.0])]},
    ]
    with pytest.warns(UserWarning, match="nearest point") as said:
        Langevin(groups, lr=0.1)
    assert len(said) == 1
    assert "Circle: 1 of 3 by up to 1, in parameter 0; Sphere: 1 of 1 by up to 4, in parameter 2)" in str(
        said[0].message
    )


def test_normalised_rows_are_at_the_rim_and_come_off_it():
    """Their slack rounds to nothing, and without a momentum a row with no slack would feel no force."""
    p = torch.nn.Parameter(torch.nn.functional.normalize(torch.randn(256, 50, generator=torch.manual_seed(0))))
    with pytest.warns(UserWarning, match="Sphere: 256 of 256"):
        optimizer = Langevin([p], 0.1, constraint=Sphere(1.0))
    assert bool((optimizer.state[p]["slack"] > 0.01).all())


@pytest.mark.parametrize("radius", [0.05, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_what_lands_is_inside_in_every_precision(radius, dtype):
    for space in (Circle(radius), Sphere(radius)):
        p = torch.nn.Parameter(radius * torch.tensor([[1.0, -1.01, 7.0]], dtype=dtype))
        with pytest.warns(UserWarning, match="were moved"):
            optimizer = Langevin([p], 0.1, constraint=space)
        state = optimizer.state[p]
        assert all(bool(torch.as_tensor(x).isfinite().all()) for x in state.values())
        size = p.double().abs() if isinstance(space, Circle) else p.double().norm()
        assert bool((size < radius).all())
        assert (
            optimizer.residuals()[0] <= 32 * torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_strictly_inside_a_level_set_stays(dtype):
    for block, g in (([0.6, 0.7], lambda q: q.square().sum() - 1), ([100.0] * 4, lambda q: q.mean() - 100.005)):
        p = torch.nn.Parameter(torch.tensor(block, dtype=dtype))
        before = p.detach().clone()
        Langevin([p], 0.1, constraint=LevelSet(g, slack=True))
        assert torch.equal(p, before)
