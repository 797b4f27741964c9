"""Weights changed by somebody else: loaded, clamped, averaged. The next step starts from what is there."""

import io

import pytest
import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from holonom import Langevin
from holonom.constraints import Circle

from .cases import CONSTRAINED, Case, Net, assert_equal, backward, build, every_constrained_case, snapshot, train

TINY = 1e-6
at_any_time = pytest.mark.parametrize("steps", [0, 2], ids=["before any step", "between steps"])
spaces = pytest.mark.parametrize("space", ["free", "circle", "sphere", "orthogonal", "levelset-slack"])


def overwrite(net, other):
    with torch.no_grad():
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            p.copy_(q)


@spaces
@at_any_time
def test_loaded_weights_are_taken_up(space, steps):
    case = Case("OBA", space)
    net, opt = build(case, temperature=0.0, lr=TINY)
    train(net, opt, steps)
    target = Net(init=5)
    net.load_state_dict(target.state_dict())
    train(net, opt, 1)
    for p, q in zip(net.parameters(), target.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-4)
    assert opt.residuals()[0] < 1e-5


@spaces
@at_any_time
def test_loaded_weights_are_taken_up_although_a_group_was_added_since(space, steps):
    net, opt = build(Case("OBA", space), temperature=0.0, lr=TINY)
    train(net, opt, steps)
    target = Net(init=5)
    overwrite(net, target)
    opt.add_param_group({"params": [("late", torch.nn.Parameter(torch.zeros(2)))], "constraint": None})
    train(net, opt, 1)
    for p, q in zip(net.parameters(), target.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-4)


@every_constrained_case
@pytest.mark.parametrize("project", [False, True], ids=["edited", "edited and projected"])
def test_a_checkpoint_made_after_an_edit_resumes_bit_equal(case, project):
    net, opt = build(case)
    train(net, opt, 2)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(0.9)
    if project:
        opt.project_()
    buffer = io.BytesIO()
    torch.save({"opt": opt.state_dict(), "net": net.state_dict()}, buffer)  # the optimizer may settle the edit first
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    fresh, fresh_opt = build(case, init=1)
    fresh.load_state_dict(saved["net"])
    fresh_opt.load_state_dict(saved["opt"])
    train(net, opt, 2)
    train(fresh, fresh_opt, 2)
    assert_equal(snapshot(fresh, fresh_opt), snapshot(net, opt))


@pytest.mark.parametrize("case", [c for c in CONSTRAINED if "k1" not in c.space], ids=str)
def test_averaged_weights_are_brought_back_to_the_manifold(case):
    net, opt = build(case)
    average = AveragedModel(net)
    for _ in range(4):
        train(net, opt, 1)
        average.update_parameters(net)
    overwrite(net, average.module)
    opt.project_()
    assert opt.residuals()[0] < 1e-5
    assert opt.cotangencies()[0] < 1e-5
    for p, q in zip(net.parameters(), average.module.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0.5)
    train(net, opt, 1)
    assert opt.residuals()[0] < 1e-5


def test_projecting_what_is_on_the_manifold_changes_no_weight():
    for case in CONSTRAINED:
        if case.scheme == "L" and "k1" not in case.space:
            net, opt = build(case)
            before = [p.detach().clone() for p in net.parameters()]
            opt.project_()
            assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))


def test_torch_s_averaging_tools_run_alongside():
    net, opt = build(Case("BAOAB", "circle"))
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    schedule = SWALR(opt, swa_lr=0.05, anneal_epochs=2)
    rates = []
    for _ in range(4):
        train(net, opt, 1)
        average.update_parameters(net)
        schedule.step()
        rates.append(opt.param_groups[0]["lr"])
    assert rates[-1] == pytest.approx(0.05)
    assert average.n_averaged.item() == 4
    assert all((p.abs() <= 1.5).all() for p in average.parameters())


def test_clamping_after_every_step_is_taken_up_each_time():
    weight = torch.nn.Parameter(torch.full((3,), 0.5))
    opt = Langevin([weight], 0.1, constraint=Circle(1.0))
    for _ in range(5):
        weight.grad = -torch.ones(3)
        opt.step()
        with torch.no_grad():
            weight.clamp_(max=0.51)
    assert torch.equal(weight, torch.full((3,), 0.51))
    weight.grad = torch.zeros(3)
    opt.step()
    assert (weight < 0.7).all()


def test_a_forward_pass_and_a_new_gradient_are_no_edit():
    net, opt = build(Case("BAOAB", "sphere"))
    train(net, opt, 1)
    before = {name: p._version for name, p in net.named_parameters()}
    momenta = [opt.state[p]["slack_momentum"].clone() for p in net.parameters()]
    backward(net, opt)
    assert {name: p._version for name, p in net.named_parameters()} == before
    opt.param_groups[0]["lr"] = 0.0
    opt.step()
    assert all(torch.equal(opt.state[p]["slack_momentum"], m) for p, m in zip(net.parameters(), momenta, strict=True))
