"""Parameters that join an optimizer later: streams of their own, and the state of the others stays."""

import pytest
import torch
from torch import nn

from holonom import Langevin, NonFiniteGradientError
from holonom.constraints import Constraint, Free, Orthogonal
from holonom.heun import HeunLangevin


def parameters(*sizes):
    return [nn.Parameter(torch.ones(size)) for size in sizes]


def step(opt, gradient=1.0):
    for group in opt.param_groups:
        for p in group["params"]:
            p.grad = torch.full_like(p, gradient)
    opt.step()


def streams(opt):
    return [int(opt.state[p]["stream"]) for group in opt.param_groups for p in group["params"]]


def test_no_two_parameters_share_a_stream():
    a, b, c, d = parameters(2, 2, 2, 2)
    opt = Langevin([{"params": [a]}, {"params": [b]}], temperature=0.1)
    del opt.param_groups[0]
    opt.add_param_group({"params": [c]})
    assert len(set(streams(opt))) == 2
    opt.param_groups[0] = {"params": [d]}
    step(opt)
    assert len(set(streams(opt))) == len(streams(opt)) == 2


@pytest.mark.filterwarnings("ignore:no parameter of this optimizer has a gradient:UserWarning")
def test_a_parameter_that_is_appended_leaves_the_others_as_they_are():
    a, b = parameters(3, 3)
    opt = Langevin([a], 0.1)
    step(opt)
    momentum = opt.state[a]["momentum"].clone()
    opt.param_groups[0]["params"].append(b)
    opt.zero_grad()
    opt.synchronize()
    assert torch.equal(opt.state[a]["momentum"], momentum)
    assert opt.param_groups[0]["step"] == 1
    step(opt)
    assert not torch.equal(b.detach(), torch.ones(3))


def test_a_temperature_for_every_replica_needs_replicas_everywhere():
    a, b = (nn.Parameter(torch.ones(shape)) for shape in ((3, 4), (4,)))
    with pytest.raises(ValueError, match="temperature"):
        Langevin([a, b], 0.1, temperature=torch.tensor([0.1, 0.2, 0.3]))


class Slowed(Free):
    """A user's space with a number in a verb."""

    def __init__(self, factor):
        self.factor = factor

    def __repr__(self):
        return f"Slowed({self.factor})"

    def kick_(self, x, force, h):
        super().kick_(x, force, h * self.factor)


def test_kernels_are_not_shared_by_spaces_that_differ():
    ends = []
    for factor in (1.0, 5.0):
        (p,) = parameters(4)
        opt = Langevin([p], 0.1, scheme="OBA", friction=0.0, constraint=Slowed(factor), fuse=True)
        step(opt)
        ends.append(1 - float(p.detach()[0]))
    assert ends[1] == pytest.approx(5 * ends[0], rel=1e-4)
    assert isinstance(Slowed(1.0), Constraint)


@pytest.mark.parametrize("first_shared", [True, False])
def test_gradients_that_are_one_tensor_do_not_make_a_kernel_for_others(first_shared):
    a, b = parameters(5, 5)
    opt = Langevin([a, b], 0.1, scheme="L", fuse=True)
    shared = torch.ones(5)
    for together in (first_shared, not first_shared):
        a.grad, b.grad = (shared, shared) if together else (torch.ones(5), torch.full((5,), 2.0))
        opt.step()
    torch.testing.assert_close(a.detach(), torch.full((5,), 0.8))
    torch.testing.assert_close(b.detach(), torch.full((5,), 0.7))


def test_orthogonal_steps_ignore_autocast():
    q = nn.Parameter(torch.linalg.qr(torch.randn(20, 8))[0].contiguous())
    opt = Langevin([q], 0.1, scheme="OBA", constraint=Orthogonal())
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(5):
            q.grad = torch.ones_like(q).sin() * 0.1
            opt.step()
    assert opt.residuals()[0] < 1e-6


def test_half_precision_is_polished_whatever_stands_before_it():
    torch.manual_seed(0)
    start = torch.linalg.qr(torch.randn(12, 6))[0].contiguous()
    found = []
    for before in ([], [nn.Parameter(start.clone())]):
        q = nn.Parameter(start.to(torch.bfloat16))
        opt = Langevin([*before, q], 0.05, scheme="OBA", constraint=Orthogonal())
        for i in range(9):
            for p in (*before, q):
                p.grad = torch.sin(p.detach() + i)
            opt.step()
        found.append(q.detach().clone())
    assert torch.equal(*found)


def test_a_bad_second_gradient_of_heuns_step_is_refused():
    (p,) = parameters(2)
    opt = HeunLangevin([p], 0.1, scheme="L")
    gradients = iter([torch.ones(2), torch.tensor([torch.nan, 1.0])])

    def closure():
        p.grad = next(gradients)
        return p.sum()

    with pytest.raises(NonFiniteGradientError, match="second gradient"):
        opt.step(closure)
    assert p.detach().isfinite().all()
