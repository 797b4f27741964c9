"""Initialisers start on the manifold with the right law; the penalty is the papers' formula."""

import math
import sys
import warnings

import pytest
import torch
from torch import nn

from holonom import Ensemble, Langevin, init, penalties
from holonom.constraints import Circle, Orthogonal, Sphere
from holonom.errors import ConstraintError


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("space", "shape", "fill"),
    [
        (Circle(0.5), (40, 30), lambda w, s: init.circle_(w, s, generator())),
        (Circle(torch.linspace(0.1, 1, 30)), (40, 30), lambda w, s: init.circle_(w, s, generator())),
        (Sphere(2.0), (40, 30), lambda w, s: init.sphere_(w, s, generator())),
        (Sphere(2.0, slack=False), (40, 30), lambda w, s: init.sphere_(w, s, generator())),
        (Sphere(torch.linspace(1, 2, 8), slack=False, view="conv"), (8, 3, 5, 5), lambda w, s: init.sphere_(w, s)),
        (Orthogonal(), (40, 30), lambda w, s: init.orthogonal_(w, generator=generator())),
        (Orthogonal(), (30, 40), lambda w, s: init.orthogonal_(w, generator=generator())),
        (Orthogonal("conv"), (8, 3, 5, 5), lambda w, s: init.orthogonal_(w, "conv", generator())),
        (Orthogonal("batch"), (5, 6, 4), lambda w, s: init.orthogonal_(w, "batch", generator())),
    ],
    ids=[f"{i}" for i in range(9)],
)
def test_initialised_weights_need_no_landing(space, shape, fill) -> None:
    weight = nn.Parameter(torch.empty(shape))
    fill(weight, space)
    before = weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt = Langevin([weight], 0.1, constraint=space)
    assert torch.equal(weight, before)
    assert opt.residuals()[0] < 2e-6


def test_laws_of_the_initialisers() -> None:
    """Second moments: r²/2 on circles, r²/(n+1) on spheres with slack, 1/rows for tall Haar matrices."""
    w = init.circle_(torch.empty(200_000), Circle(2.0), generator())
    assert w.square().mean().item() == pytest.approx(2.0, rel=0.01)
    w = init.sphere_(torch.empty(50_000, 3), Sphere(2.0), generator())
    assert w.square().mean().item() == pytest.approx(1.0, rel=0.01)
    w = init.orthogonal_(torch.empty(4000, 5, 3), "batch", generator())
    assert w.square().mean().item() == pytest.approx(1 / 5, rel=1e-5)
    assert (w**4).mean().item() == pytest.approx(3 / (5 * 7), rel=0.02)
    assert init.uniform_(torch.empty(10_000, 16), generator()).abs().max().item() <= 0.25
    assert init.gaussian_(torch.empty(100_000), 0.01, generator()).std().item() == pytest.approx(0.01, rel=0.02)


def test_orthogonal_penalty_formula_and_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 6), nn.Linear(6, 2))
    w = model[1].weight
    penalty = penalties.orthogonal_penalty(model, 0.05)
    expected = 0.05 * (w.T @ w - torch.eye(4)).square().sum()
    assert penalty.item() == pytest.approx(expected.item())
    penalty.backward()
    assert torch.allclose(w.grad, 0.05 * 4 * w @ (w.T @ w - torch.eye(4)), atol=1e-6)
    assert model[0].weight.grad is None
    every = penalties.orthogonal_penalty(model, 1.0, layers="all")
    by_hand = penalties.orthogonal_penalty([m.weight for m in model], 1.0)
    assert every.item() == pytest.approx(by_hand.item())
    wide = torch.randn(2, 5)
    assert penalties.orthogonal_penalty([wide], 1.0).item() == pytest.approx(
        (wide @ wide.T - torch.eye(2)).square().sum().item(), rel=1e-5
    )


def test_the_old_module_warns_and_works() -> None:
    sys.modules.pop("holonom.soft", None)
    with pytest.warns(DeprecationWarning, match=r"holonom\.penalties"):
        from holonom.soft import orthogonal_penalty
    assert orthogonal_penalty is penalties.orthogonal_penalty


def test_bad_penalty() -> None:
    with pytest.raises(ValueError, match="layers='all'"):
        penalties.orthogonal_penalty(nn.Linear(2, 2), 1.0)
    with pytest.raises(ValueError, match="layers must be"):
        penalties.orthogonal_penalty(nn.Linear(2, 2), 1.0, layers="some")
    assert math.isfinite(penalties.orthogonal_penalty(nn.Linear(2, 2), 1.0, layers="all").item())


@pytest.mark.parametrize("make", [lambda: [nn.Linear(4, 4)], lambda: [nn.Conv1d(4, 4, 3)]])
def test_the_penalty_of_an_ensemble_is_the_sum_over_replicas(make) -> None:
    ensemble = Ensemble(lambda: nn.Sequential(*[layer for _ in range(3) for layer in make()]), 3, seed=0)
    alone = sum(penalties.orthogonal_penalty(ensemble.alone(i), 0.5) for i in range(3))
    torch.testing.assert_close(penalties.orthogonal_penalty(ensemble, 0.5), alone)


def test_sphere_says_what_it_cannot_fill() -> None:
    with pytest.raises(ConstraintError, match="more than two dimensions"):
        init.sphere_(torch.randn(4, 3, 3), Sphere(1.0))
