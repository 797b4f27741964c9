"""What other optimizers' steps need of a space: nearest points, tangent parts and retractions, against NumPy."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from holonom import Langevin, init_, project_
from holonom._step.integrate import Phase
from holonom.constraints import Circle, Free, LevelSet, Orthogonal, Spectral, Sphere, View
from holonom.errors import ConstraintError

from .harness import array, close


def numbers(*shape, key=0):
    return torch.from_numpy(np.random.default_rng(key).standard_normal(shape))


def phase(space, q):
    return Phase(space.view(q.clone()).clone(), radius=space.radius_of(q))


def polar(w):
    u, _, vh = np.linalg.svd(w, full_matrices=False)
    return u @ vh


def on_ball(w, r):
    return w * np.minimum(1, r / np.linalg.norm(w, axis=-1, keepdims=True))


def clipped(w, c):
    u, sigma, vh = np.linalg.svd(w, full_matrices=False)
    return u * np.minimum(sigma, c)[..., None, :] @ vh


def of_two_rows(w):
    return w.reshape(2, 2, 5).transpose(0, 2, 1)


RADII = np.array([0.1, 0.5, 2.0])
NEAREST = {  # space, shape, the nearest point by hand
    "free": (Free(), (4, 3), lambda w: w),
    "circle": (Circle(0.5), (4, 3), lambda w: np.clip(w, -0.5, 0.5)),
    "circle, radii": (Circle(torch.from_numpy(RADII)), (4, 3), lambda w: np.clip(w, -RADII, RADII)),
    "sphere": (Sphere(1.5, slack=False), (4, 3), lambda w: 1.5 * w / np.linalg.norm(w, axis=1, keepdims=True)),
    "ball": (Sphere(1.5), (4, 3), lambda w: on_ball(w, 1.5)),
    "matrix in a ball": (Sphere(1.5, per="matrix"), (4, 3), lambda w: on_ball(w.reshape(-1), 1.5)),
    "orthogonal": (Orthogonal(), (5, 3), polar),
    "orthogonal, square": (Orthogonal(), (4, 4), polar),
    "orthogonal, wide and scaled": (Orthogonal(scale=2.5), (3, 6), lambda w: 2.5 * polar(w.T)),
    "orthogonal experts": (Orthogonal(scale=0.5, per="matrix"), (3, 5, 2), lambda w: 0.5 * polar(w)),
    "spectral": (Spectral(1.2), (5, 3), lambda w: clipped(w, 1.2)),
    "spectral, wide blocks": (Spectral(1.2, View(blocks=2)), (4, 5), lambda w: clipped(of_two_rows(w), 1.2)),
}  # fmt: skip


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("case", NEAREST)
def test_nearest_points(case, near):
    space, shape, by_hand = NEAREST[case]
    q = numbers(*shape)
    if near:  # as after a step of an optimizer
        space.land_(q, "q")
        q = 1.1 * q + 0.03 * numbers(*shape, key=1)
    x = phase(space, q)
    blocks = array(x.q)
    space.nearest_(x)
    expected = by_hand(array(q))
    close(array(x.q).reshape(expected.shape), expected, 1e-13)
    assert float(space.residual(x)) < 1e-13
    again = array(x.q)
    space.nearest_(x)
    close(array(x.q), again, 1e-14)
    if space.is_bound:
        assert float(space.residual(Phase(torch.from_numpy(blocks), radius=x.radius))) > 0
        inside = x._replace(q=torch.from_numpy(1e-3 * blocks))
        space.nearest_(inside)
        np.testing.assert_array_equal(array(inside.q), 1e-3 * blocks)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_large_matrices_after_a_step_of_an_optimizer(dtype):
    """Near enough for iterations, where a decomposition would take longer."""
    space, q = Orthogonal(), numbers(100, 60)
    space.land_(q, "q")
    q = (q + 2.5e-3 * numbers(100, 60, key=1)).to(dtype)
    assert 0.1 < float(torch.linalg.matrix_norm(space.residuals(Phase(q)))) < 0.5
    x = Phase(q.clone())
    space.nearest_(x)
    close(array(x.q.double()), polar(array(q.double())), 20 * torch.finfo(dtype).eps)


def test_a_device_takes_as_many_iterations_as_weights_far_away_need(monkeypatch):
    """What a device does, on the CPU: no decomposition, any singular value from a thousandth of the largest on."""
    from holonom.constraints.orthogonal import polar as module

    class Elsewhere(torch.Tensor):
        device = torch.device("meta")

    monkeypatch.setattr(module, "nearest", None)
    u, _, vh = torch.linalg.svd(numbers(3, 6, 4), full_matrices=False)
    for sigma in ([1.0, 0.9, 1.2, 1.01], [40.0, 10.0, 1.0, 0.1], [0.01, 0.005, 0.01, 0.02], [2.0, 1.7, 1.8, 1.9]):
        q = ((u * torch.tensor(sigma, dtype=u.dtype)) @ vh).as_subclass(Elsewhere)
        close(array(torch.Tensor(module.approach(q))), array(u @ vh), 1e-12)


TANGENT = ["free", "sphere", "orthogonal", "orthogonal, square", "orthogonal, wide and scaled", "orthogonal experts"]


@pytest.mark.parametrize("case", TANGENT)
def test_tangent_parts_are_orthogonal_projections_and_moves_stay_close_to_them(case):
    space, shape, _ = NEAREST[case]
    q = numbers(*shape)
    space.land_(q, "q")
    x = phase(space, q)
    step = torch.from_numpy(np.random.default_rng(2).standard_normal(x.q.shape))
    tangent = step.clone()
    space.project_step_(x, tangent)
    again = tangent.clone()
    space.project_step_(x, again)
    close(array(again), array(tangent), 1e-13)
    other = torch.from_numpy(np.random.default_rng(3).standard_normal(x.q.shape))
    projected = other.clone()
    space.project_step_(x, projected)
    assert float(((step - tangent) * projected).sum()) == pytest.approx(0, abs=1e-12)  # what is removed is normal
    if case == "sphere":
        w, v = array(x.q), array(step)
        close(array(tangent), v - w * (w * v).sum(1, keepdims=True) / 1.5**2, 1e-14)
    start, errors = array(x.q), []
    for size in (0.02, 0.01):
        x = x._replace(q=torch.from_numpy(start.copy()))
        space.move_(x, size * tangent)
        errors.append(np.abs(array(x.q) - start - size * array(tangent)).max())
        assert float(space.residual(x)) < 1e-13
    assert errors[1] <= errors[0] / 3.5 + 1e-15  # a retraction: the error is of second order


def test_a_bound_stops_only_what_points_outward_and_only_at_the_bound():
    space = Sphere(1.0)
    q = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.0], [0.6, 0.8]], dtype=torch.float64)
    step = torch.tensor([[2.0, 3.0], [-2.0, 3.0], [2.0, 3.0], [0.6, 0.8]], dtype=torch.float64)
    x = phase(space, q)
    space.project_step_(x, step)
    close(array(step), [[0, 3], [-2, 3], [2, 3], [0, 0]], 1e-15)
    space.move_(x, step * 0.1)
    close(np.linalg.norm(array(x.q), axis=1), [1, np.hypot(0.8, 0.3), np.hypot(0.7, 0.3), 1], 1e-15)

    circle = Circle(1.0)
    q = torch.tensor([1.0, 1.0, -1.0, 0.99], dtype=torch.float64)
    step = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    x = phase(circle, q)
    circle.project_step_(x, step)
    close(array(step), [0, -1, 0, 1])
    circle.move_(x, step)
    close(array(x.q), [1, 0, -1, 1])


def test_a_zero_block_stays():
    x = phase(Sphere(1.0, slack=False), torch.zeros(2, 3))
    Sphere(1.0, slack=False).nearest_(x)
    assert not x.q.any()


def test_norms_by_block():
    q = numbers(3, 4, 5)
    close(
        array(Sphere(1.0, per="matrix").norms(phase(Sphere(1.0, per="matrix"), q))),
        np.linalg.norm(q.numpy(), axis=(1, 2)),
    )
    space = Orthogonal("batch")
    close(array(space.norms(phase(space, q))), np.linalg.norm(q.numpy(), axis=(1, 2)))
    close(array(Circle(1.0).norms(phase(Circle(1.0), q))), np.abs(q.numpy()))


# ── Spectral ──


def test_spectral_lands_only_what_is_outside():
    space = Spectral(1.5)
    assert repr(space) == "Spectral(bound=1.5, view='auto')"
    q, _ = torch.linalg.qr(numbers(5, 3))
    before = q.clone()
    assert space.land_(q, "q").moved == 0
    assert torch.equal(q, before)
    q = torch.diag(torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64))
    landing = space.land_(q, "q")
    assert (landing.moved, landing.blocks) == (1, 1)
    assert landing.distance == pytest.approx(np.hypot(1.5, 0.5))
    close(array(q), np.diag([1.5, 1.0, 1.5]))
    w = nn.Parameter(torch.diag(torch.tensor([3.0, 1.0])))
    project_([{"params": [w], "constraint": space}])
    close(array(w), np.diag([1.5, 1.0]), 1e-6)


def group(space):
    return {"params": [nn.Parameter(torch.eye(3))], "constraint": space}


REFUSED = [
    (lambda: Langevin([group(Spectral(1.0))]), ValueError, "update='plain'"),
    (lambda: Langevin([group(Spectral(1.0))]), ValueError, "Orthogonal(scale=c)"),
    (lambda: init_([group(Spectral(1.0))]), ConstraintError, "no law to draw"),
    (lambda: Spectral(0.0), ConstraintError, "Spectral: bound must be a positive number, got 0.0"),
    (lambda: Spectral(1.0, per="row"), ConstraintError, "per must be one of 'matrix', 'head', 'block', got 'row'"),
    (lambda: Spectral(1.0).check(torch.ones(3), "b"), ConstraintError, "Spectral on b of shape (3,): only matrices"),
    (lambda: Spectral(1.0).project_step_(Phase(torch.eye(2)), torch.eye(2)), ConstraintError, "has no tangent spaces"),
    (lambda: LevelSet(lambda q: q.sum()).nearest_(Phase(torch.eye(2))), ConstraintError, "works in Langevin only"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_refusals(make, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        make()
