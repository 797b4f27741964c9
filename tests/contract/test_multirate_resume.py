"""torch's contract for every multirate optimizer: saving in mid-cycle, copying, schedules, groups that join."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim import lr_scheduler as schedulers

from holonom.constraints import Circle
from holonom.multirate import Composite, Multirate, MultirateLangevin, MultirateWrapper, RandomSubsets

EVERY = 3


def net(init=0):
    torch.manual_seed(init)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))


def split(model, **slow):
    scales = {1: model[4:], EVERY: model[2:4], 2 * EVERY: model[:2]}
    return [{"params": list(x.parameters()), "every": k, **(slow if k > 1 else {})} for k, x in scales.items()]


def langevin(model, **options):
    groups = split(model, scheme="BACDEDCAB", temperature=1e-3)
    groups[0] |= {"constraint": Circle(2.0), "friction": 2.0}
    return MultirateLangevin(groups, 0.1, temperature=1e-2, **options)


def wrapper(model):
    fast, middle, slow = (group["params"] for group in split(model))
    return MultirateWrapper(
        [
            {"optimizer": SGD(fast, 0.1, momentum=0.9)},
            {"optimizer": AdamW(middle, 0.01), "every": EVERY, "drift": False},
            {"optimizer": AdamW(slow, 0.01, amsgrad=True), "every": 2 * EVERY},
        ]
    )


BUILDERS = {
    "sgd": lambda model: Multirate(split(model), 0.1, weight_decay=0.01),
    "no drift": lambda model: Multirate(split(model), 0.1, drift=False),
    "langevin": langevin,
    "wrapper": wrapper,
    "subsets": lambda model: RandomSubsets(model.parameters(), 0.1, steps_off=EVERY, momentum=0.5, seed=3),
    "composite": lambda model: Composite(model.parameters(), 0.1, EVERY),
}
every_kind = pytest.mark.parametrize("kind", BUILDERS)


def build(kind, init=0):
    model = net(init)
    return model, BUILDERS[kind](model)


def backward(model, opt, seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)
    if isinstance(opt, Composite):
        opt.zero_grad()
        (model(x) - y).square().mean().backward()
        return
    with opt.due():
        (model(x) - y).square().mean().backward()


def train(model, opt, steps, first=0, scheduler=None):
    for seed in range(first, first + steps):
        backward(model, opt, seed)
        opt.step()
        if scheduler is not None:
            scheduler.step()


def through_a_file(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def assert_same(a, b):
    torch.testing.assert_close(dict(a.state_dict()), dict(b.state_dict()), rtol=0, atol=0)


@every_kind
@pytest.mark.parametrize("steps", range(2 * EVERY + 1))
def test_a_run_resumed_at_any_point_of_a_cycle_is_the_uninterrupted_one(kind, steps):
    model, opt = build(kind)
    train(model, opt, steps)
    saved = through_a_file({"model": model.state_dict(), "opt": opt.state_dict()})
    train(model, opt, 2 * EVERY + 1, first=steps)

    fresh, fresh_opt = build(kind, init=1)
    fresh.load_state_dict(saved["model"])
    fresh_opt.load_state_dict(saved["opt"])
    train(fresh, fresh_opt, 2 * EVERY + 1, first=steps)
    assert_same(fresh, model)


@every_kind
def test_copies_go_on_alike(kind):
    model, opt = build(kind)
    train(model, opt, 4)
    copies = [copy.deepcopy((model, opt)), pickle.loads(pickle.dumps((model, opt)))]
    train(model, opt, 5, first=4)
    for twin, twin_opt in copies:
        held = {id(p) for group in twin_opt.param_groups for p in group["params"]}
        assert held == {id(p) for p in twin.parameters()}
        train(twin, twin_opt, 5, first=4)
        assert_same(twin, model)


@every_kind
def test_state_is_complete_before_the_first_step(kind):
    """Apart from what the wrapped optimizers themselves make later."""

    def layout(opt):
        saved = opt.state_dict()
        return {(i, slot): x.shape for i, own in saved["state"].items() for slot, x in own.items()}

    model, opt = build(kind)
    before = layout(opt)
    train(model, opt, 2)
    assert layout(opt) == before
    assert before


SCHEDULERS = {
    "StepLR": lambda opt: schedulers.StepLR(opt, step_size=2, gamma=0.5),
    "CosineAnnealingLR": lambda opt: schedulers.CosineAnnealingLR(opt, T_max=6),
    "OneCycleLR": lambda opt: schedulers.OneCycleLR(opt, max_lr=0.2, total_steps=20, cycle_momentum=False),
}


@every_kind
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_acts_at_once_and_goes_on_after_loading(kind, name):
    model, opt = build(kind)
    scheduler = SCHEDULERS[name](opt)
    train(model, opt, 4, scheduler=scheduler)
    constant, constant_opt = build(kind)
    train(constant, constant_opt, 4)
    assert not torch.equal(model[4].weight, constant[4].weight)

    saved = through_a_file({"model": model.state_dict(), "opt": opt.state_dict(), "schedule": scheduler.state_dict()})
    train(model, opt, 5, first=4, scheduler=scheduler)
    fresh, fresh_opt = build(kind, init=1)
    fresh_scheduler = SCHEDULERS[name](fresh_opt)
    fresh.load_state_dict(saved["model"])
    fresh_opt.load_state_dict(saved["opt"])
    fresh_scheduler.load_state_dict(saved["schedule"])
    train(fresh, fresh_opt, 5, first=4, scheduler=fresh_scheduler)
    assert_same(fresh, model)


def test_one_cycle_may_cycle_the_momentum():
    model, opt = build("sgd")
    scheduler = schedulers.OneCycleLR(opt, max_lr=0.2, total_steps=9)
    train(model, opt, 8, scheduler=scheduler)
    assert opt.param_groups[1]["momentum"] != 0.9


@every_kind
def test_hooks_around_a_step_run(kind):
    model, opt = build(kind)
    seen = []
    opt.register_step_pre_hook(lambda *_: seen.append("before"))
    opt.register_step_post_hook(lambda *_: seen.append("after"))
    train(model, opt, 1)
    assert seen == ["before", "after"]


@pytest.mark.parametrize("kind", ["sgd", "langevin"])
def test_a_group_that_joins_keeps_the_common_clock(kind):
    model, opt = build(kind)
    train(model, opt, 1)
    late = nn.Parameter(torch.ones(2))
    opt.add_param_group({"params": [late], "every": EVERY})
    moved = []
    for seed in range(1, 8):
        before = late.detach().clone()
        with opt.due():
            (model(torch.ones(1, 4)) * late).sum().backward()
        assert (late.grad is not None) == (seed % EVERY == 0)
        opt.step()
        moved.append(not torch.equal(late, before))
    assert moved == [False, False, True, True, True, True, True]  # it rests until its first turn


def test_the_periods_of_a_checkpoint_are_taken_over():
    model, opt = build("sgd")
    other = Multirate([{**group, "every": 1} for group in split(model)], 0.1)
    other.load_state_dict(opt.state_dict())
    assert [group["every"] for group in other.param_groups] == [1, EVERY, 2 * EVERY]


def test_half_precision_trains():
    model = net().to(torch.bfloat16)
    opt = Multirate(split(model), 0.05)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    losses = []
    for _ in range(30):
        with opt.due():
            value = (model(x) - 1).square().mean()
            value.backward()
        opt.step()
        losses.append(value.item())
    assert losses[-1] < losses[0] / 2
    assert opt.state[model[0].weight]["momentum"].dtype == torch.bfloat16
