"""What a step makes of gradients: read, never written; summed, clipped, negated; from a closure; in any grouping."""

import random

import numpy as np
import pytest
import torch

from holonom import cell

from .cases import (
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


@every_case
@pytest.mark.parametrize("foreach", [True, False])
def test_one_tensor_at_a_time_or_all_at_once(case, foreach):
    net, opt = build(case, foreach=None)
    other, other_opt = build(case, foreach=foreach)
    train(net, opt, 4)
    train(other, other_opt, 4)
    assert_equal(snapshot(other, other_opt), snapshot(net, opt))


@every_case
def test_tensors_that_outgrow_the_caches_go_the_same_way(case, monkeypatch):
    """One after another, unless all at once is asked for."""
    monkeypatch.setattr(cell, "HUGE", 1)
    run, counts = cell.run_unless, []
    monkeypatch.setattr(cell, "run_unless", lambda *args: counts.append(len(args[3].q)) or run(*args))
    ways = []
    for foreach in (None, True):
        net, opt = build(case, foreach=foreach)
        counts.clear()
        train(net, opt, 4)
        ways.append((max(counts), snapshot(net, opt)))
    (one, alone), (most, together) = ways
    assert one == 1
    assert most > 1 or case.orthogonal  # whose matrices are stacked
    assert_equal(alone, together)
