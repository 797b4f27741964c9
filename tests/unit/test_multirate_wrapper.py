"""Any torch optimizer on a slow scale: its step with k times the rate, at once or spread over the cycle."""

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from holonom import Langevin
from holonom.constraints import Circle
from holonom.multirate import Multirate, MultirateWrapper
from tests.multirate_problem import agree, gradient, loss, parameters, train, values

LR = 0.01


def test_sgd_spread_over_a_cycle_is_algorithm_5_1():
    mine, theirs = parameters(), parameters()
    wrapped = MultirateWrapper(
        [
            {"optimizer": SGD(mine[:2], LR, momentum=0.9, weight_decay=0.1), "every": 5},
            {"optimizer": SGD(mine[2:], LR, momentum=0.9)},
        ]
    )
    own = Multirate([{"params": theirs[:2], "every": 5, "weight_decay": 0.1}, {"params": theirs[2:]}], LR)
    agree(train(wrapped, mine, 15), train(own, theirs, 15), tolerance=1e-14)


@pytest.mark.parametrize("drift", [True, False])
@pytest.mark.parametrize("kind", [AdamW, Adam, RMSprop, Adagrad])
def test_a_slow_optimizer_makes_its_own_step_in_k_parts_or_at_once(kind, drift):
    """On the slow part nothing else acts: after a cycle it is where the bare optimizer with k·lr has gone."""
    every = 4
    mine, bare = parameters(), parameters()
    opt = MultirateWrapper(
        [
            {"optimizer": kind(mine[:2], lr=LR), "every": every, "drift": drift},
            {"optimizer": SGD(mine[2:], lr=LR)},
        ]
    )
    reference = kind(bare[:2], lr=every * LR)
    fast = values(bare)[2]
    for batch, theta in enumerate(train(opt, mine, 3 * every)):
        at = batch % every
        if at == 0:
            before = values(bare)[:2]
            bare[2].data.copy_(torch.from_numpy(fast))
            reference.zero_grad()
            loss(bare, batch).backward()
            reference.step()
            after = values(bare)[:2]
        fast = theta[2]
        share = (at + 1) / every if drift else 1
        for x, start, end in zip(theta, before, after, strict=False):
            np.testing.assert_allclose(x, start + share * (end - start), rtol=0, atol=1e-14)


def test_schedulers_set_the_optimizers_rates():
    params = parameters()
    slow, fast = AdamW(params[:2], lr=LR), SGD(params[2:], lr=LR)
    opt = MultirateWrapper([{"optimizer": slow, "every": 2}, {"optimizer": fast}])
    schedule = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.5)
    for _ in train(opt, params, 2):
        schedule.step()
    assert slow.param_groups[0]["lr"] == fast.param_groups[0]["lr"] == LR / 4


def test_langevin_with_a_constraint_on_the_fast_part():
    params = parameters()
    fast = Langevin(params[2:], LR, temperature=0.1, constraint=Circle(0.6))
    opt = MultirateWrapper([{"optimizer": AdamW(params[:2], lr=LR), "every": 3}, {"optimizer": fast}])
    for _ in train(opt, params, 7):
        assert fast.residuals()[0] < 1e-12
    assert fast.param_groups[0]["step"] == 7


def test_a_slow_langevin_leaps_or_is_refused():
    params = parameters()

    def build(drift):
        slow = Langevin(params[:1], LR, constraint=Circle(0.9), friction=0.0, scheme="BAB")
        return MultirateWrapper([{"optimizer": slow, "every": 3, "drift": drift}, {"optimizer": SGD(params[1:], LR)}])

    with pytest.raises(TypeError, match="MultirateLangevin"):
        build(drift=True)
    before = values(params)[0]
    first, *_, last = train(build(drift=False), params, 3)
    assert not np.array_equal(first[0], before)
    assert np.array_equal(first[0], last[0])


def test_another_optimizer_can_join():
    params = parameters()
    opt = MultirateWrapper([{"optimizer": SGD(params[2:], LR)}])
    list(train(opt, params, 1))
    opt.add_param_group({"optimizer": SGD(params[:1], LR), "every": 2})
    before = values(params)
    first, second = train(opt, params, 2, first=1)
    assert np.array_equal(first[0], before[0])  # in mid-cycle it has no gradient yet, and rests
    np.testing.assert_allclose(second[0], first[0] - LR * gradient(first, 2)[0], rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        ({"every": 5}, "'optimizer'"),
        ({"optimizer": "AdamW"}, "'optimizer'"),
        ({"optimizer": SGD([torch.nn.Parameter(torch.ones(1))], 0.1), "period": 5}, "period"),
    ],
)
def test_bad_scales(scale, said):
    with pytest.raises(TypeError, match=said):
        MultirateWrapper([scale])
