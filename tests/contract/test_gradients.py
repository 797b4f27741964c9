"""What a step makes of gradients: read, never written; summed, clipped, negated; absent, sparse or not finite."""

import random
import warnings

import numpy as np
import pytest
import torch

from holonom import Langevin, optimizer
from holonom.constraints import Circle
from holonom.errors import NonFiniteGradientError

from .cases import (
    COLD,
    Case,
    Net,
    assert_close,
    assert_equal,
    backward,
    build,
    counters,
    data,
    every_case,
    few_cases,
    loss,
    snapshot,
    train,
)


@every_case
@pytest.mark.parametrize("options", [{}, {"maximize": True}, {"weight_decay": 0.1}], ids=["plain", "maximize", "decay"])
def test_gradients_are_only_read(case, options):
    net, opt = build(case, **options)
    for _ in range(2):
        backward(net, opt)
        before = [(p.grad, p.grad.clone(), p.grad._version) for p in net.parameters()]
        opt.step()
        for p, (same, value, version) in zip(net.parameters(), before, strict=True):
            assert p.grad is same
            assert torch.equal(p.grad, value)
            assert p.grad._version == version


@every_case
def test_no_global_generator_is_read_or_moved(case):
    def states():
        return torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()

    def run():
        net, opt = build(case)
        train(net, opt, 2)
        return snapshot(net, opt)

    before = states()
    first = run()
    after = states()
    assert torch.equal(before[0], after[0])
    assert np.array_equal(before[1], after[1])
    assert before[2] == after[2]
    torch.manual_seed(99)
    assert_equal(run(), first)


@few_cases
def test_accumulated_gradients_make_one_step_with_one_draw(case):
    once, once_opt = build(case)
    parts, parts_opt = build(case)
    for _ in range(3):
        for net in (once, parts):
            net.zero_grad()
        x, y = data(once.up)
        losses = [(parts(x[half]) - y[half]).square().mean() / 2 for half in (slice(0, 8), slice(8, 16))]
        for part in losses:
            part.backward()
        for p, q in zip(once.parameters(), parts.parameters(), strict=True):
            p.grad = q.grad.clone()
        once_opt.step()
        parts_opt.step()
    assert_equal(snapshot(once, once_opt), snapshot(parts, parts_opt))
    assert counters(parts_opt)[0][0] == 3


@few_cases
def test_clipping_acts_on_the_step(case):
    clipped, clipped_opt = build(case)
    scaled, scaled_opt = build(case)
    for _ in range(2):
        backward(clipped, clipped_opt)
        backward(scaled, scaled_opt)
        total = torch.nn.utils.clip_grad_norm_(clipped.parameters(), 0.01)
        assert total > 0.01
        for p in scaled.parameters():
            p.grad.mul_(0.01 / (total + 1e-6))
        clipped_opt.step()
        scaled_opt.step()
    assert_equal(snapshot(clipped, clipped_opt), snapshot(scaled, scaled_opt))


@few_cases
def test_a_closure_is_called_once_with_gradients_enabled_and_its_loss_is_returned(case):
    net, opt = build(case)
    plain, plain_opt = build(case)
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        return backward(net, opt)

    value = opt.step(closure)
    expected = backward(plain, plain_opt)
    assert plain_opt.step() is None
    assert torch.equal(value, expected)
    assert calls == [True]
    assert_equal(snapshot(net, opt), snapshot(plain, plain_opt))


@every_case
def test_maximizing_is_minimizing_the_negative(case):
    up, up_opt = build(case, maximize=True)
    down, down_opt = build(case)
    for _ in range(2):
        backward(up, up_opt)
        up_opt.step()
        down.zero_grad()
        (-loss(down)).backward()
        down_opt.step()
    assert_equal(snapshot(up, up_opt), snapshot(down, down_opt))


@few_cases
def test_foreach_is_accepted_and_has_no_effect(case):
    runs = []
    for foreach in (None, True, False):
        net, opt = build(case, foreach=foreach)
        train(net, opt, 4)
        runs.append(snapshot(net, opt))
    assert_equal(runs[1], runs[0])
    assert_equal(runs[2], runs[0])


# ── gradients that are absent ─────────────────────────────────────────────────────────────────────


@every_case
def test_a_parameter_without_a_gradient_is_left_alone_and_leaves_the_others_alone(case):
    net, opt = build(case)
    full, full_opt = build(case)
    for n, o in ((net, opt), (full, full_opt)):
        train(n, o, 2)
        backward(n, o)
    before = snapshot(net, opt)
    net.mid.grad = None
    opt.step()
    full_opt.step()
    after, whole = snapshot(net, opt), snapshot(full, full_opt)
    mid = [name for name in after if name.startswith("mid")]
    assert_equal({name: after[name] for name in mid}, {name: before[name] for name in mid})
    assert not torch.equal(after["up"], before["up"])
    if not case.thermostatted:  # the thermostat reads everybody's energy
        rest = after.keys() - set(mid)
        same = assert_close if case.orthogonal else assert_equal
        same({name: after[name] for name in rest}, {name: whole[name] for name in rest})


@few_cases
def test_frozen_parameters_never_move(case):
    net = Net(case.space)
    net.mid.requires_grad_(False)
    frozen, rest = [("mid", net.mid)], [(n, p) for n, p in net.named_parameters() if n != "mid"]
    options = {"constraint": case.constraint, "scheme": case.scheme, "temperature": 0.01}
    opt = Langevin([{"params": frozen}, {"params": rest}], 0.1, **options)
    before = snapshot(net, opt)
    train(net, opt, 3)
    after = snapshot(net, opt)
    for name in after:
        if name.startswith("mid"):
            assert torch.equal(after[name], before[name])
    assert not torch.equal(after["up"], before["up"])


def test_a_step_without_any_gradient_changes_nothing_and_says_so_once():
    net, opt = build(Case("BAOAB", "circle"))
    before = snapshot(net, opt)
    with pytest.warns(UserWarning, match="no parameter of this optimizer has a gradient"):
        opt.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.step()
    assert_equal(snapshot(net, opt), before)


def test_zero_grad_drops_or_zeroes_gradients():
    net, opt = build(Case("BAOAB", "free"))
    backward(net, opt)
    opt.zero_grad(set_to_none=False)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in net.parameters())
    opt.zero_grad()
    assert all(p.grad is None for p in net.parameters())


# ── values that are not finite ────────────────────────────────────────────────────────────────────


@every_case
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_raises_before_anything_is_written(case, value):
    net, opt = build(case)
    train(net, opt, 2)
    twin, twin_opt = build(case)
    train(twin, twin_opt, 2)
    before, counted = snapshot(net, opt), counters(opt)
    backward(net, opt)
    net.down.grad[1, 2] = value
    with pytest.raises(NonFiniteGradientError, match=r"step 2: the gradient of 'down' has 1 of 12 entries"):
        opt.step()
    assert_equal(snapshot(net, opt), before)
    assert counters(opt) == counted
    train(net, opt, 2)
    train(twin, twin_opt, 2)
    assert_equal(snapshot(net, opt), snapshot(twin, twin_opt))


def test_one_bad_group_stops_all_groups():
    net = Net()
    opt = Langevin([{"params": [p]} for p in net.parameters()], 0.1)
    backward(net, opt)
    net.down.grad.fill_(float("nan"))
    before, counted = snapshot(net, opt), counters(opt)
    with pytest.raises(NonFiniteGradientError, match="parameter 2"):
        opt.step()
    assert_equal(snapshot(net, opt), before)
    assert counters(opt) == counted


def test_large_gradients_whose_sum_overflows_are_fine():
    net, opt = build(Case("OBA", "free"), lr=1e-3, **COLD)
    for p in net.parameters():
        p.grad = torch.full_like(p, 3e38)
    opt.step()
    assert all(p.isfinite().all() for p in net.parameters())


@few_cases
def test_a_grad_scaler_leaves_good_steps_alone_and_skips_bad_ones(case):
    net, opt = build(case)
    plain, plain_opt = build(case)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # a power of two: scaling is exact
    for bad in (False, True, False):
        opt.zero_grad()
        scaler.scale(loss(net)).backward()
        if bad:
            net.mid.grad[0, 0] = float("inf")
            before, counted = snapshot(net, opt), counters(opt)
        scaler.step(opt)
        scaler.update()
        if bad:
            assert_equal(snapshot(net, opt), before)
            assert counters(opt) == counted
            assert scaler.get_scale() == 512.0
    train(plain, plain_opt, 2)
    assert_equal(snapshot(net, opt), snapshot(plain, plain_opt))


def test_a_sparse_gradient_is_refused_by_name():
    table = torch.nn.Embedding(5, 3, sparse=True)
    opt = Langevin(table.named_parameters(), 0.1)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"'weight'.*sparse=False"):
        opt.step()


@pytest.mark.parametrize("shape", [(5,), (64, 64), (3, 8), (0,)])
def test_a_gradient_of_another_shape_is_refused_by_name(shape):
    """Before a backend is chosen."""
    weight = torch.nn.Parameter(torch.ones(8, 3))
    opt = Langevin([("w", weight)], 0.1)
    for _ in range(2):
        weight.grad = torch.ones(8, 3)
        opt.step()
    before = weight.detach().clone()
    weight.grad.data = torch.ones(shape)
    with pytest.raises(RuntimeError, match=r"'w'.*backward\(\) again"):
        opt.step()
    assert torch.equal(weight, before)


def test_a_refused_step_takes_up_no_edit():
    """Whatever is wrong with one parameter, the others are left as they are."""
    table = torch.nn.Embedding(5, 3, sparse=True)
    weight = torch.nn.Parameter(torch.full((3, 3), 0.1))
    opt = Langevin([{"params": [weight], "constraint": Circle(1.0)}, {"params": table.parameters()}], 0.1)
    table(torch.tensor([1, 2])).sum().backward()
    weight.grad = torch.ones(3, 3)
    with torch.no_grad():
        weight.fill_(5.0)
    with pytest.raises(RuntimeError, match="sparse=False"):
        opt.step()
    assert torch.equal(weight, torch.full((3, 3), 5.0))


# ── steps that a device skips ─────────────────────────────────────────────────────────────────────


@every_case
@pytest.mark.parametrize("seed", [3, torch.tensor(3)], ids=["int", "tensor"])
def test_a_skipped_step_leaves_no_trace_on_what_follows(case, seed, monkeypatch):
    """Neither in what the next step owes nor in its noise. A device does not raise: it masks what a step writes."""
    runs = []
    for pattern in ([True, False, False, True, True, False], [False] * 3):
        net, opt = build(case, seed=seed)
        for skip in pattern:
            monkeypatch.setattr(optimizer, "skip_non_finite", lambda work, skip=skip: torch.tensor(skip))
            backward(net, opt)
            if skip and not (case.orthogonal or "levelset" in case.space):  # which raise for it on a CPU
                net.mid.grad.fill_(torch.nan)
            opt.step()
        (step, owed, clock), *_ = counters(opt)
        assert (step, clock) == (len(pattern), 3)
        runs.append(snapshot(net, opt) | {"owed": float(owed)})
    (assert_close if case.orthogonal else assert_equal)(*runs)
