"""Multirate SGD against the thesis's Algorithms 5.1–5.3, two and three scales, to 1e-12."""

import numpy as np
import pytest
import torch

from holonom.multirate import Multirate
from tests import multirate_oracle as oracle
from tests.multirate_problem import agree, gradient, loss, parameters, start, train, train_by_closure, values

LR = 0.01


def build(every, **options):
    params = parameters()
    return params, Multirate([{"params": [p], "every": k} for p, k in zip(params, every, strict=True)], LR, **options)


def textbook(periods, **options):
    """The oracle with one part per scale; for two scales the first two parts are the slow one."""
    parts = start() if len(periods) == 2 else [np.concatenate(start()[:2]), start()[2]]
    options = {"mu": 0.9, "decay": [0.0] * len(parts), "cycles": 3, **options}
    run = oracle.multirate_sgd(parts, [0 * x for x in parts], gradient, LR * np.prod(periods), periods, **options)
    for theta in run:
        yield theta if len(theta) == 3 else [*np.split(theta[0], [3]), theta[1]]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_linear_drift(momentum):
    """Algorithm 5.1."""
    params, opt = build((5, 5, 1), momentum=momentum)
    agree(train(opt, params, 15), textbook([5], mu=momentum))


def test_linear_drift_with_weight_decay():
    """Algorithm 5.3, another ω on each part."""
    params, opt = build((5, 5, 1), weight_decay=0.3)
    opt.param_groups[2]["weight_decay"] = 0.1
    agree(train(opt, params, 15), textbook([5], decay=[0.3, 0.1]))


def test_no_drift_to_the_letter():
    """Algorithm 5.2 takes the fast gradient behind the slow move: a closure lets it."""
    params, opt = build((5, 5, 1), drift=False, weight_decay=0.2)
    agree(train_by_closure(opt, params, 15), textbook([5], decay=[0.2, 0.2], drift=False))


def test_a_closure_changes_nothing_with_drift():
    """Algorithm 5.1 takes both gradients at one place, so once is enough."""
    params, opt = build((5, 5, 1))
    agree(train_by_closure(opt, params, 15), textbook([5]))


@pytest.mark.parametrize("periods", [[2, 3], [3, 2], [2, 2]], ids=str)
def test_three_scales(periods):
    """5.3.1: the step sequences are divided one after the other."""
    every = (periods[0] * periods[1], periods[1], 1)
    params, opt = build(every)
    agree(train(opt, params, 3 * every[0]), textbook(periods))
    params, opt = build(every, drift=False)
    agree(train_by_closure(opt, params, 3 * every[0]), textbook(periods, drift=False))


@pytest.mark.parametrize("drift", [(False, False, True), (True, False, True), (False, True, True)], ids=str)
def test_one_gradient_a_step(drift):
    """Without a closure all parts that are due take their gradients at one place, whatever they do with them."""
    params, opt = build((6, 2, 1), weight_decay=0.1)
    for group, yes in zip(opt.param_groups, drift, strict=True):
        group["drift"] = yes
    every, rates = (6, 2, 1), [LR] * 18
    rest = [0 * x for x in start()]
    expected = oracle.simultaneous_sgd(start(), rest, gradient, rates, every, 0.9, [0.1] * 3, 18, drift)
    agree(train(opt, params, 18), expected)


def test_a_closure_keeps_a_drifting_scale_s_gradient_while_faster_ones_take_theirs_again():
    """Slow drifts, middle leaps: the slow gradient is the one at the start of the step, the fast one is not."""
    params, opt = build((4, 2, 1))
    opt.param_groups[1]["drift"] = False
    theta, momenta = start(), [0 * x for x in start()]

    def expected():
        for t in range(8):
            slopes = gradient(theta, t)
            if t % 4 == 0:
                momenta[0] = 0.9 * momenta[0] + slopes[0]
            if t % 2 == 0:
                momenta[1] = 0.9 * momenta[1] + slopes[1]
                theta[1] = theta[1] - 2 * LR * momenta[1]
            momenta[2] = 0.9 * momenta[2] + gradient(theta, t)[2]
            theta[0], theta[2] = theta[0] - LR * momenta[0], theta[2] - LR * momenta[2]
            yield [x.copy() for x in theta]

    agree(train_by_closure(opt, params, 8), expected())


def test_every_step_moves_with_the_rate_of_the_moment():
    params, opt = build((4, 4, 1))
    opt.param_groups[1]["drift"] = False
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 1 / (1 + t))
    rates = [LR / (1 + t) for t in range(12)]
    rest = [0 * x for x in start()]
    drift = (True, False, True)
    expected = oracle.simultaneous_sgd(start(), rest, gradient, rates, (4, 4, 1), 0.9, [0.0] * 3, 12, drift)

    def actual():
        for theta in train(opt, params, 12):
            schedule.step()
            yield theta

    agree(actual(), expected)


def test_the_same_stepsize_for_slow_and_fast():
    """Table 5.2's h_S = h_F: a group's own lr, divided by its period, moves it by lr·p in a cycle."""
    params, opt = build((5, 5, 1))
    opt.param_groups[0]["lr"] = opt.param_groups[1]["lr"] = LR / 5
    before = values(params)
    *_, after = train(opt, params, 5)
    for i in (0, 1):
        np.testing.assert_allclose(after[i], before[i] - LR * gradient(start(), 0)[i], rtol=0, atol=1e-15)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"momentum": 0.0}], ids=str)
def test_with_period_one_it_is_torch_s_sgd_bit_for_bit(options):
    params, opt = build((1, 1, 1), **options)
    others = parameters()
    sgd = torch.optim.SGD(others, LR, foreach=True, **{"momentum": 0.9, **options})
    for batch, _ in enumerate(train(opt, params, 6)):
        sgd.zero_grad()
        loss(others, batch).backward()
        sgd.step()
        assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


def test_replicas_with_a_rate_each():
    """A leading dimension of replicas and one lr per replica."""
    rates = torch.tensor([0.1, 0.01], dtype=torch.float64)
    both = [torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float64)) for _ in range(2)]
    opt = Multirate([{"params": [both[0]]}, {"params": [both[1]], "every": 2}], rates)
    single = [[torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2)] for _ in rates]
    alone = [
        Multirate([{"params": [a]}, {"params": [b], "every": 2}], float(rate))
        for (a, b), rate in zip(single, rates, strict=True)
    ]
    for _ in range(4):
        with opt.due():
            (both[0] * both[1]).square().sum().backward()
        opt.step()
        for (a, b), own in zip(single, alone, strict=True):
            with own.due():
                (a * b).square().sum().backward()
            own.step()
    for replica, pair in enumerate(single):
        for batched, p in zip(both, pair, strict=True):
            torch.testing.assert_close(batched[replica], p, rtol=0, atol=1e-15)


def test_slow_biases_are_a_partition():
    """5.9.4 in one line."""
    import holonom
    from holonom.partitions import biases

    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    groups = holonom.partition(net, {biases: {"every": 5}, "rest": {}}, verbose=False)
    opt = Multirate(groups, lr=0.2, momentum=0.0, model=net)
    assert [group["every"] for group in opt.param_groups] == [5, 1]
    assert opt.param_groups[0]["param_names"] == ["0.bias", "2.bias"]
    with opt.due():
        net(torch.ones(4, 2)).sum().backward()
    opt.step()
    with opt.due():
        net(torch.ones(4, 2)).sum().backward()
    assert net[0].bias.grad is None
    assert net[0].weight.grad is not None
