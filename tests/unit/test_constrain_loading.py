"""Weights of a checkpoint that are loaded before constrain is called, and weights that are no numbers."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

import holonom
from holonom.constraints import Circle, LevelSet, Orthogonal, Spectral, Sphere
from holonom.errors import ConstraintError, ProjectionError

pytestmark = pytest.mark.filterwarnings("ignore:weights that did not satisfy")
SPACES = {
    "initial rows": (Sphere("initial", factor=2.0), "tangent"),
    "initial matrix": (Sphere("initial", per="matrix", factor=0.5), "angular"),
    "fixed rows": (Sphere(1.0, slack=False), "plain"),
    "ball": (Sphere(0.3), "tangent"),
    "circle": (Circle(0.1), "tangent"),
    "orthogonal": (Orthogonal(), "tangent"),
    "initial orthogonal": (Orthogonal(scale="initial"), "plain"),
    "spectral": (Spectral(0.8), "plain"),
}


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)).to(dtype)


def build(space, update, dtype=torch.float32, weights=None):
    model = network(dtype)
    if weights is not None:
        model.load_state_dict(weights)
    opt = AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    return model, opt, holonom.constrain(opt, model, {"2.weight": space}, update)


def train(model, opt, seed):
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(3):
        opt.zero_grad()
        model(torch.randn(16, 6, generator=generator).to(dtype)).float().square().mean().backward()
        opt.step()


def saved(*modules):
    return [copy.deepcopy(module.state_dict()) for module in modules]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SPACES)
def test_weights_may_be_loaded_before_the_optimizer_is_built(name, dtype):
    """Lightning does so. Norms of trained weights are not initial ones, and are not multiplied by the factor again."""
    space, update = SPACES[name]
    model, opt, _ = build(space, update, dtype)
    train(model, opt, seed=1)
    weights, state = saved(model, opt)
    other, again, held = build(space, update, dtype, weights)
    again.load_state_dict(state)
    assert torch.equal(other[2].weight, weights["2.weight"])
    held.check(again)
    for resumed in ((model, opt), (other, again)):
        train(*resumed, seed=2)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_a_state_that_was_not_made_with_the_first_weights_leaves_them_where_they_are():
    model, opt, held = build(Sphere("initial", factor=2.0), "tangent")
    before = model[2].weight.detach().clone()
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert torch.equal(model[2].weight, before)
    held.check()


def test_weights_that_were_written_since_are_not_put_back():
    space, update = SPACES["initial rows"]
    model, opt, _ = build(space, update)
    train(model, opt, seed=1)
    weights, state = saved(model, opt)
    other, again, held = build(space, update, weights=weights)
    other[2].weight.data.mul_(-1)
    held.project_()
    again.load_state_dict(state)
    assert torch.equal(other[2].weight.sign(), -weights["2.weight"].sign())
    stepped, again, _ = build(space, update, weights=weights)
    train(stepped, again, seed=3)
    after = stepped[2].weight.detach().clone()
    again.load_state_dict(state)
    assert torch.equal(stepped[2].weight, after)


def test_roundings_outside_a_bound_are_no_news():
    model, opt, _ = build(Sphere(0.3), "tangent")
    train(model, opt, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other, *_ = build(Sphere(0.3), "tangent", weights=model.state_dict())
    assert torch.equal(other[2].weight, model[2].weight)


@pytest.mark.parametrize("track", [False, True])
@pytest.mark.parametrize("space", [Orthogonal(), Spectral(1.0)], ids=repr)
def test_a_step_to_matrices_that_are_no_numbers_names_them(space, track):
    model = network()
    opt = SGD(model.parameters(), lr=0.1)
    held = holonom.constrain(opt, model, {"2.weight": space}, track=track)
    before = model[2].weight.detach().clone()
    model[2].weight.grad = torch.full((12, 12), torch.nan)
    with pytest.raises(ConstraintError, match=r"'2.weight': .* hold NaN or infinity and have no nearest point"):
        opt.step()
    if track:
        assert torch.equal(model[2].weight, before)
        held.check()
    else:
        with pytest.raises(ConstraintError, match="NaN or infinity"):
            held.project_()
        with pytest.raises(ProjectionError, match="hold NaN or infinity"):
            held.check()


def test_half_precision_rounds_what_a_users_function_sees():
    space = LevelSet(lambda w: w.sum() - 1)
    model, opt, held = build(space, "plain", torch.bfloat16)
    train(model, opt, seed=0)
    assert held.residuals()["'2.weight'"] > space.lost
    held.check()
    with torch.no_grad():
        model[2].weight.mul_(2)
    with pytest.raises(ProjectionError, match="something else than this optimizer's step has written them"):
        held.check()
