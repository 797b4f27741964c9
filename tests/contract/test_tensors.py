"""Odd tensors: tied, empty, scalar, laid out the other way."""

import pytest
import torch
from torch import nn

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal, Sphere
from holonom.errors import ConstraintError

from .cases import Case, Net, assert_close, build, snapshot, train


def test_tied_weights_are_one_parameter():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.outer.weight = self.inner.weight

    net = Tied()
    opt = Langevin(net.named_parameters(), 0.1, temperature=0.01)
    net.outer(net.inner(torch.ones(1, 3))).sum().backward()
    opt.step()
    assert len(opt.param_groups[0]["params"]) == len(opt.state) == 1
    assert net.outer.weight is net.inner.weight


@pytest.mark.parametrize("word", ["BAOAB", "L", "BACDEDCAB"])
@pytest.mark.parametrize("space", [None, Circle(1.0), Sphere(2.0), Sphere(1.0, slack=False), Orthogonal()], ids=repr)
@pytest.mark.parametrize("company", [True, False], ids=["in company", "alone"])
def test_empty_tensors_are_carried_along(word, space, company):
    full = nn.Parameter(torch.eye(3) * (0.9 if isinstance(space, Circle) else 1.0))
    params = [nn.Parameter(torch.zeros(0, 3)), *([full] if company else [])]
    opt = Langevin(params, 0.1, scheme=word, constraint=space, temperature=0.01)
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        opt.step()
    opt.project_()
    opt.load_state_dict(opt.state_dict())
    assert params[0].shape == (0, 3)
    assert opt.residuals()[0] < 1e-5
    assert opt.cotangencies()[0] < 1e-5
    assert (opt.temperatures()[0] > 0) == (company and word != "L")


SCALARS = [(word, None) for word in ("BAOAB", "L", "M", "BACDEDCAB")]
SCALARS += [(word, Circle(1.0)) for word in ("BAOAB", "L", "BACDEDCAB")]


@pytest.mark.parametrize(("word", "space"), SCALARS)
def test_scalars_are_parameters_too(word, space):
    scalar = nn.Parameter(torch.tensor(0.3))
    opt = Langevin([("gain", scalar)], 0.1, scheme=word, constraint=space, temperature=0.01)
    for _ in range(3):
        scalar.grad = torch.ones(())
        opt.step()
    assert scalar.shape == ()
    assert scalar.item() < 0.3
    assert "gain scalar" in repr(opt)


def test_a_sphere_refuses_a_scalar():
    with pytest.raises(ConstraintError, match="scalar has no rows"):
        Langevin([nn.Parameter(torch.tensor(0.3))], 0.1, constraint=Sphere(1.0))


@pytest.mark.parametrize("space", ["free", "circle", "sphere", "orthogonal"])
def test_memory_layout_does_not_matter(space):
    """A transposed parameter, with a gradient laid out the other way."""
    net, opt = build(Case("BAOAB", space))
    other = Net()
    other.up.data = other.up.detach().mT.contiguous().mT
    case = Case("BAOAB", space)
    other_opt = Langevin(other.named_parameters(), 0.1, temperature=0.01, constraint=case.constraint, seed=0)
    train(net, opt, 3)
    train(other, other_opt, 3)
    assert not other.up.is_contiguous()
    assert_close(snapshot(other, other_opt), snapshot(net, opt))
