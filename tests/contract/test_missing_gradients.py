"""Gradients that are absent, sparse or not finite: who moves, who does not, and what is said."""

import warnings

import pytest
import torch

from holonom import Langevin
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
    every_case,
    few_cases,
    loss,
    snapshot,
    train,
)


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


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("shape", [(5,), (64, 64), (3, 8), (0,)])
def test_a_gradient_of_another_shape_is_refused_by_name(shape, fuse):
    weight = torch.nn.Parameter(torch.ones(8, 3))
    opt = Langevin([("w", weight)], 0.1, fuse=fuse)
    for _ in range(3):
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
