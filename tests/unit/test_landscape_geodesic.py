"""Constrained parameters: what a straight line does to them, and paths that stay on the manifold."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from holonom import Langevin
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from holonom.ensemble import Ensemble
from holonom.errors import ConstraintError
from holonom.landscape import interpolate


class Holder(nn.Module):
    """A model that is nothing but a weight."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(*shape, dtype=torch.float64))

    def forward(self):
        return self.weight


def value(model):
    return model().square().sum()


def path_of(start, end, space, along="geodesic", points=5):
    model = Holder(*start.shape)
    return interpolate(
        model, {"weight": start}, {"weight": end}, value, points, constraints={"weight": space}, along=along
    )


def rng():
    return torch.Generator().manual_seed(7)


def rotation(n, seed, det=1.0):
    q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))).Q
    if float(torch.linalg.det(q)) * det < 0:
        q[:, 0] *= -1
    return q


def test_a_circle_moves_by_its_angle():
    start, end = torch.tensor([[0.3, -1.9]], dtype=torch.float64), torch.tensor([[1.2, 0.4]], dtype=torch.float64)
    path = path_of(start, end, Circle(2.0))
    for alpha in (0.0, 0.25, 0.6, 1.0):
        angle = (1 - alpha) * np.arcsin(start.numpy() / 2) + alpha * np.arcsin(end.numpy() / 2)
        np.testing.assert_allclose(path.state(alpha)["weight"].numpy(), 2 * np.sin(angle), rtol=1e-12)
    assert float(path.departure.max()) == 0.0


@pytest.mark.parametrize("slack", [False, True])
def test_a_sphere_moves_along_great_circles(slack):
    start, end = (torch.randn(4, 3, dtype=torch.float64, generator=rng().manual_seed(s)) for s in (1, 2))
    start, end = (x / x.norm(dim=1, keepdim=True) * (0.9 if slack else 1.5) for x in (start, end))
    path = path_of(start, end, Sphere(1.5, slack=slack), points=11)
    lift = lambda x: torch.cat([x, (2.25 - x.square().sum(1, keepdim=True)).clamp_min(0).sqrt()], 1)  # noqa: E731
    points = [lift(path.state(a)["weight"]) if slack else path.state(a)["weight"] for a in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for point in points:
        torch.testing.assert_close(point.norm(dim=1), torch.full((4,), 1.5, dtype=torch.float64))
    steps = torch.stack([(b - a).norm(dim=1) for a, b in pairwise(points)])
    torch.testing.assert_close(steps, steps[:1].expand(4, -1))  # equal chords: constant speed on one circle
    ends = [lift(x) if slack else x for x in (start, end)]
    angle = torch.acos((ends[0] * ends[1]).sum(1) / 2.25)
    torch.testing.assert_close(steps[0], 2 * 1.5 * torch.sin(angle / 8))  # and the shortest one


def test_a_square_orthogonal_weight_follows_the_exponential():
    start, end = rotation(6, 1), rotation(6, 2)
    path = path_of(start, end, Orthogonal())
    from scipy.linalg import expm, logm

    log = logm((start.T @ end).numpy()).real
    for alpha in (0.0, 0.3, 0.5, 1.0):
        expected = start.numpy() @ expm(alpha * log)
        np.testing.assert_allclose(path.state(alpha)["weight"].numpy(), expected, atol=1e-10)
    assert float(path.departure.max()) < 1e-12


@pytest.mark.parametrize("shape", [(7, 2), (2, 7), (5, 4), (9, 1)])
def test_a_tall_or_wide_weight_stays_orthogonal_from_end_to_end(shape):
    tall = (max(shape), min(shape))
    pair = [torch.linalg.qr(torch.randn(*tall, dtype=torch.float64, generator=rng().manual_seed(s))).Q for s in (1, 2)]
    start, end = (q if shape == tall else q.mT.contiguous() for q in pair)
    path = path_of(start, end, Orthogonal())
    torch.testing.assert_close(path.state(0.0)["weight"], start)
    torch.testing.assert_close(path.state(1.0)["weight"], end)
    for alpha in (0.2, 0.5, 0.8):
        q = path.state(alpha)["weight"]
        q = q if shape == tall else q.mT
        torch.testing.assert_close(q.mT @ q, torch.eye(min(shape), dtype=torch.float64), atol=1e-12, rtol=0)
    assert float(path.departure.max()) < 1e-12
    length = lambda n: sum(  # noqa: E731
        float((path.state((i + 1) / n)["weight"] - path.state(i / n)["weight"]).norm()) for i in range(n)
    )
    assert length(64) < 4 * float((end - start).norm())  # no detour


def test_half_turns_and_equal_ends():
    start = torch.eye(4, dtype=torch.float64)
    path = path_of(start, -start, Orthogonal())
    torch.testing.assert_close(path.state(1.0)["weight"], -start)
    assert float(path.departure.max()) < 1e-12
    for space, same in (
        (Orthogonal(), rotation(4, 1)),
        (Sphere(1.0, slack=False), rotation(4, 1)),
        (Circle(2.0), start),
    ):
        still = path_of(same, same.clone(), space)
        torch.testing.assert_close(still.state(0.5)["weight"], same)


def test_a_stack_of_kernels():
    kernels = torch.stack([rotation(4, s) for s in (1, 2)]).reshape(2, 4, 2, 2)
    others = torch.stack([rotation(4, s) for s in (3, 4)]).reshape(2, 4, 2, 2)
    rows = path_of(rotation(4, 1).reshape(4, 1, 2, 2), rotation(4, 2).reshape(4, 1, 2, 2), Orthogonal(view="conv"))
    assert float(rows.departure.max()) < 1e-12
    stacked = path_of(kernels[:, :, None], others[:, :, None], Orthogonal(view="batch conv"))
    assert float(stacked.departure.max()) < 1e-12
    torch.testing.assert_close(stacked.state(1.0)["weight"], others[:, :, None])


def test_the_straight_line_says_how_far_it_leaves():
    start = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    end = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"leaves the manifold of weight: up to 0.293 away at α = 0.5"):
        path = path_of(start, end, Sphere(1.0, slack=False), along="line")
    expected = [1 - math.hypot(1 - a, a) for a in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert path.departure.tolist() == pytest.approx(expected, abs=1e-12)
    assert "off the constraints' manifold" in repr(path)


def test_a_circle_is_never_left_by_a_straight_line(recwarn):
    path = path_of(torch.full((2, 2), -0.5).double(), torch.full((2, 2), 0.9).double(), Circle(1.0), along="line")
    assert float(path.departure.max()) == 0.0
    assert not recwarn


def test_the_optimizer_knows_the_constraints():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    nn.init.orthogonal_(model[0].weight)
    with torch.no_grad():
        model[0].weight.mul_(torch.linalg.det(model[0].weight).sign())
    optimizer = Langevin(
        [
            {"params": [model[0].weight], "constraint": Orthogonal()},
            {"params": [model[0].bias, *model[1].parameters()]},
        ],
        0.1,
    )
    start = {name: x.clone() for name, x in model.state_dict().items()}
    end = {**start, "0.weight": start["0.weight"][[1, 2, 0, 3]], "1.bias": start["1.bias"] + 1}
    x = torch.randn(5, 4, generator=rng())

    def loss(m):
        return m(x).square().mean()

    geodesic = interpolate(model, start, end, loss, 5, constraints=optimizer, along="geodesic")
    assert float(geodesic.departure.max()) < 1e-5
    with pytest.warns(UserWarning, match="leaves the manifold of 0.weight"):
        line = interpolate(model, start, end, loss, 5, constraints=optimizer)
    torch.testing.assert_close(line.values[0, [0, -1]], geodesic.values[0, [0, -1]], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(line.values, geodesic.values)
    for alpha, value in zip(geodesic.alphas.tolist(), geodesic.values[0].tolist(), strict=True):
        model.load_state_dict(geodesic.state(alpha))
        assert loss(model).item() == pytest.approx(value, rel=1e-4)


def test_replicas_follow_their_own_geodesics():
    one, two = (Ensemble(lambda: Holder(3, 3), 2, seed=s) for s in (0, 1))
    ends = [torch.stack([rotation(3, s), rotation(3, s + 10)]) for s in (1, 2)]
    for ensemble, weights in zip((one, two), ends, strict=True):
        ensemble.load_state_dict({"weight": weights})
    path = interpolate(one, one, two, lambda m: m()[0].sum(), 5, constraints={"weight": Orthogonal()}, along="geodesic")
    optimizer = Langevin(one.parameters(), 0.1, constraint=Orthogonal(view="batch"))
    same = interpolate(one, one, two, lambda m: m()[0].sum(), 5, constraints=optimizer, along="geodesic")
    torch.testing.assert_close(same.values, path.values)
    for i in range(2):
        alone = path_of(ends[0][i], ends[1][i], Orthogonal())
        torch.testing.assert_close(path.state(0.3)["weight"][i], alone.state(0.3)["weight"])
    assert path.values.shape == (1, 2, 5)


def test_what_has_no_geodesic_is_refused():
    with pytest.raises(ConstraintError, match="determinants of opposite sign"):
        path_of(rotation(3, 1), rotation(3, 2, det=-1.0), Orthogonal())
    with pytest.raises(ConstraintError, match="opposite points"):
        path_of(rotation(3, 1), -rotation(3, 1), Sphere(1.0, slack=False))
    with pytest.raises(ConstraintError, match="no geodesics are implemented"):
        path_of(rotation(3, 1), rotation(3, 2), LevelSet(lambda q: q.sum() - 1))
    model = Holder(2, 2)
    with pytest.raises(ValueError, match="no parameter"):
        interpolate(model, model, model, value, constraints={"bias": Circle(1.0)})


SCALED = {
    "scaled": (Orthogonal(scale=2.5), lambda seed: 2.5 * rotation(4, seed)),
    "columns": (Sphere(1.5, slack=False, per="column"), lambda seed: 1.5 * rotation(4, seed)),
    "matrix": (Sphere(3.0, slack=False, per="matrix"), lambda seed: 1.5 * rotation(4, seed)),
}


@pytest.mark.parametrize("case", SCALED)
def test_blocks_and_scales_have_geodesics(case):
    space, make = SCALED[case]
    start, end = make(1), make(2)
    path = path_of(start, end, space)
    assert float(path.departure.max()) < 1e-12
    torch.testing.assert_close(path.state(1.0)["weight"], end)
    middle = path.state(0.5)["weight"]
    torch.testing.assert_close((middle - start).norm(), (middle - end).norm())


def test_initial_radii_are_the_optimizers():
    model = Holder(4, 3)
    with torch.no_grad():
        model.weight.normal_(generator=rng())
    opt = Langevin(model.named_parameters(), constraint=Sphere("initial", per="matrix"))
    start = {"weight": model.weight.detach().clone()}
    end = {"weight": start["weight"].flip(0)}
    path = interpolate(model, start, end, value, 5, constraints=opt, along="geodesic")
    assert float(path.departure.max()) < 1e-12
    with pytest.raises(ValueError, match="weight: initial radii are kept by an optimizer; give this model's"):
        interpolate(model, start, end, value, 5, constraints={"weight": Sphere("initial")})
