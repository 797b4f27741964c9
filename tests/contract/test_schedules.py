"""The time step as torch's schedulers set it: floats, tensors, zero, one value per replica."""

import math

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal, Sphere

from .cases import COLD, Case, Net, assert_close, assert_equal, backward, build, every_case, few_cases, snapshot, train

SCHEDULERS = {
    "StepLR": lambda opt: schedulers.StepLR(opt, step_size=2, gamma=0.5),
    "OneCycleLR": lambda opt: schedulers.OneCycleLR(opt, max_lr=0.2, total_steps=8, cycle_momentum=False),
    "LambdaLR": lambda opt: schedulers.LambdaLR(opt, lambda epoch: min(1.0, epoch / 3)),  # a warm-up from zero
    "CosineAnnealingLR": lambda opt: schedulers.CosineAnnealingLR(opt, T_max=6),
    "ReduceLROnPlateau": lambda opt: schedulers.ReduceLROnPlateau(opt, factor=0.5, patience=0),
}
every_scheduler = pytest.mark.parametrize("name", SCHEDULERS)


def tick(scheduler):
    scheduler.step(1.0) if isinstance(scheduler, schedulers.ReduceLROnPlateau) else scheduler.step()


def follow(net, opt, scheduler, steps):
    rates = []
    for _ in range(steps):
        rates.append(float(opt.param_groups[0]["lr"]))
        train(net, opt, 1)
        tick(scheduler)
    return rates


@few_cases
@every_scheduler
@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
def test_every_step_uses_the_rate_of_the_moment(case, name, tensor):
    lr = torch.tensor(0.1, dtype=torch.float64) if tensor else 0.1
    net, opt = build(case, lr=lr)
    rates = follow(net, opt, SCHEDULERS[name](opt), 6)
    assert len(set(rates)) > 2
    by_hand, hand_opt = build(case)
    for rate in rates:
        hand_opt.param_groups[0]["lr"] = rate
        train(by_hand, hand_opt, 1)
    assert_equal(snapshot(net, opt), snapshot(by_hand, hand_opt))


@every_scheduler
def test_the_coefficients_are_those_of_the_rate(name):
    """BAOAB in closed form: the kick pays half the last rate and half this one's, drift and friction this one's."""
    q = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    opt = Langevin([q], 0.3, friction=0.7)
    scheduler = SCHEDULERS[name](opt)
    x, p, last = q.detach().clone(), torch.zeros(2, dtype=torch.float64), 0.0
    for _ in range(7):
        h = opt.param_groups[0]["lr"]
        opt.zero_grad()
        q.pow(4).sum().div(4).backward()
        opt.step()
        tick(scheduler)
        if h:
            p = p - (last + h) / 2 * x**3
            x = x + h / 2 * p
            p = math.exp(-0.7 * h) * p
            x = x + h / 2 * p
            last = h
        torch.testing.assert_close(q.detach(), x, rtol=0, atol=1e-13)


@few_cases
@every_scheduler
def test_a_schedule_goes_on_after_loading(case, name):
    net, opt = build(case)
    scheduler = SCHEDULERS[name](opt)
    follow(net, opt, scheduler, 3)
    saved = {"net": net.state_dict(), "opt": opt.state_dict(), "schedule": scheduler.state_dict()}
    fresh, fresh_opt = build(case, init=1)
    fresh_scheduler = SCHEDULERS[name](fresh_opt)
    fresh.load_state_dict(saved["net"])
    fresh_opt.load_state_dict(saved["opt"])
    fresh_scheduler.load_state_dict(saved["schedule"])
    assert follow(fresh, fresh_opt, fresh_scheduler, 3) == follow(net, opt, scheduler, 3)
    assert_equal(snapshot(fresh, fresh_opt), snapshot(net, opt))


def test_cycling_momentum_is_refused_because_there_is_none_to_cycle():
    _, opt = build(Case("BAOAB", "free"))
    with pytest.raises(ValueError, match="momentum"):
        schedulers.OneCycleLR(opt, max_lr=0.2, total_steps=8)


# ── zero ──────────────────────────────────────────────────────────────────────────────────────────


@every_case
@pytest.mark.parametrize("zero", [0.0, 0, torch.tensor(0.0)], ids=["float", "int", "tensor"])
def test_a_step_of_no_time_changes_nothing(case, zero):
    net, opt = build(case)
    for steps in (0, 3):
        train(net, opt, steps)
        rate, opt.param_groups[0]["lr"] = opt.param_groups[0]["lr"], zero
        before = snapshot(net, opt)
        train(net, opt, 2)
        assert_equal(snapshot(net, opt), before)
        opt.param_groups[0]["lr"] = rate


@every_case
@pytest.mark.parametrize("when", [0, 2], ids=["at the start", "in between"])
def test_steps_of_no_time_leave_no_trace_on_what_follows(case, when):
    """Without noise, that is: draws are keyed by the step count, which goes on."""
    net, opt = build(case, **COLD)
    plain, plain_opt = build(case, **COLD)
    train(net, opt, when)
    opt.param_groups[0]["lr"] = 0.0
    train(net, opt, 1)
    opt.param_groups[0]["lr"] = 0.1
    train(net, opt, 4 - when)
    train(plain, plain_opt, 4)
    if not case.orthogonal:
        assert_equal(snapshot(net, opt), snapshot(plain, plain_opt))
        return
    for optimizer in (opt, plain_opt):  # weights were polished at other times, which shows in a chord divided by h
        optimizer.synchronize()
    assert_close(snapshot(net, opt), snapshot(plain, plain_opt))


# ── tensors ───────────────────────────────────────────────────────────────────────────────────────


@every_case
def test_a_rate_in_a_tensor_is_the_same_rate(case):
    net, opt = build(case, lr=0.125)
    other, other_opt = build(case, lr=torch.tensor(0.125), friction=torch.tensor(1.0), temperature=torch.tensor(0.01))
    opt.param_groups[0]["temperature"] = float(torch.tensor(0.01))
    train(net, opt, 3)
    train(other, other_opt, 3)
    assert_equal(snapshot(other, other_opt), snapshot(net, opt))


REPLICAS = {
    "free": (None, "BAOAB", {}),
    "fresh momentum": (None, "BAOAB", {"friction": math.inf}),
    "circle": (Circle(1.5), "BAOAB", {}),
    "sphere": (Sphere(2.0, view="batch"), "ABO", {}),
    "orthogonal": (Orthogonal("batch"), "BAOAB", {}),
    "orthogonal L": (Orthogonal("batch"), "L", {}),
}


def replicas(kind, rates):
    space, word, options = REPLICAS[kind]
    q = torch.nn.Parameter(torch.stack([Net().up.detach()] * len(rates)))
    rate = rates if isinstance(rates, torch.Tensor) else torch.tensor(rates)
    return q, Langevin([q], rate, scheme=word, constraint=space, temperature=0.01, **{"seed": 0, **options})


def push(q, opt):
    q.grad = q.detach().cos()
    opt.step()


@pytest.mark.parametrize("kind", REPLICAS)
def test_a_replica_whose_rate_is_zero_rests(kind):
    q, opt = replicas(kind, [0.1, 0.0, 0.1])
    before = q.detach().clone()
    for _ in range(3):
        push(q, opt)
    assert q.isfinite().all()
    torch.testing.assert_close(q[1], before[1], rtol=1e-6, atol=1e-6)
    assert (q[[0, 2]] - before[[0, 2]]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", REPLICAS)
def test_a_rate_changed_in_place_is_a_rate_set_anew(kind):
    """As torch's schedulers change a tensor: what the last step still owes is owed at the last step's rate."""
    rate = torch.tensor([0.1, 0.2, 0.1])
    q, opt = replicas(kind, rate.clone())
    other, other_opt = replicas(kind, rate.clone())
    for factor in (1.0, 0.5, 0.25):
        opt.param_groups[0]["lr"].copy_(rate * factor)
        other_opt.param_groups[0]["lr"] = rate * factor
        push(q, opt)
        push(other, other_opt)
    assert torch.equal(q, other)


def test_a_group_with_a_rate_of_its_own_keeps_it():
    net = Net()
    opt = Langevin([{"params": [net.up]}, {"params": [net.mid, net.down], "lr": 0.0}], 0.1, temperature=0.01)
    before = snapshot(net, opt)
    backward(net, opt)
    opt.step()
    after = snapshot(net, opt)
    assert not torch.equal(after["up"], before["up"])
    for name in after:
        assert name.startswith("up") or torch.equal(after[name], before[name])
