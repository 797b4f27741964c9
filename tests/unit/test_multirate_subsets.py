"""Multirate regularisation (5.5.1) and the composite network (5.9.3) against the oracle."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from holonom import Ensemble
from holonom.multirate import Composite, RandomSubsets, RateError
from holonom.multirate.subsets import bernoulli
from tests import multirate_oracle as oracle
from tests.multirate_problem import agree, gradient, loss, parameters, start, train, values

H, K = 0.05, 3
WHOLE = np.concatenate(start())


def flat_gradient(theta, batch):
    return np.concatenate(gradient([theta], batch))


def build(probabilities=(0.5, 0.5, 0.5), **options):
    params = parameters()
    groups = [{"params": [p], "probability": chance} for p, chance in zip(params, probabilities, strict=True)]
    return params, RandomSubsets(groups, **{"lr": H, "steps_off": K, "seed": 0, **options})


def masks(probabilities, cycles, seed=0):
    """The subsets, as True where an entry is off, from the documented key (seed, cycle, parameter)."""
    like = [torch.from_numpy(part) for part in start()]
    return [
        np.concatenate(
            [
                bernoulli(x, 1 - chance, seed, number, index).numpy() == 0
                for index, (x, chance) in enumerate(zip(like, probabilities, strict=True))
            ]
        )
        for number in range(cycles)
    ]


def parts(run):
    for theta in run:
        yield np.split(theta, [3, 5])


@pytest.mark.parametrize("probabilities", [(0.5, 0.5, 0.5), (0.8, 0.3, 0.0)], ids=str)
def test_off_for_k_steps_then_one_step_of_h_k(probabilities):
    params, opt = build(probabilities)
    chosen = masks(probabilities, 4)
    assert 0 < sum(off.sum() for off in chosen) < 4 * len(WHOLE)
    expected = oracle.random_subsets(WHOLE, flat_gradient, H, K, chosen)
    agree(train(opt, params, 4 * (K + 1)), parts(expected))


def test_another_subset_at_every_step():
    """The ablation of Fig. 5.7: nobody catches up."""
    params, opt = build(steps_off=1, catch_up=False)
    expected = oracle.random_subsets(WHOLE, flat_gradient, H, 1, masks((0.5,) * 3, 9), catch_up=False)
    agree(train(opt, params, 9), parts(expected))


def test_momentum_and_decay_leave_what_is_off_alone():
    params, opt = build(momentum=0.9, weight_decay=0.1, seed=5)
    off = masks((0.5,) * 3, 1, seed=5)[0]
    theta, p = WHOLE, np.zeros(9)

    def expected():
        nonlocal theta, p
        for t in range(K):
            seen = np.where(off, 0.0, theta)
            p = np.where(off, p, 0.9 * p + flat_gradient(seen, t) + 0.1 * seen)
            theta = np.where(off, theta, theta - H * p)
            yield theta
        p = 0.9 * p + flat_gradient(theta, K) + 0.1 * theta
        yield theta - np.where(off, H * K, H) * p

    agree(train(opt, params, K + 1), parts(expected()))


def test_weights_are_off_inside_due_only_and_come_back_when_the_body_raises():
    params, opt = build()
    off = masks((0.5,) * 3, 1)[0]

    def body():
        with opt.due():
            assert np.array_equal(np.concatenate(values(params)) == 0, off)
            raise KeyError

    with pytest.raises(KeyError):
        body()
    assert np.array_equal(np.concatenate(values(params)), WHOLE)
    list(train(opt, params, K))
    with opt.due():
        assert all((p != 0).all() for p in params)  # the step that catches up


def test_subsets_have_their_probability_and_change_with_the_cycle():
    p = torch.nn.Parameter(torch.ones(40_000))
    opt = RandomSubsets([p], lr=0.0, probability=0.8, steps_off=2, seed=0)
    seen = []
    for _ in range(6):
        with opt.due():
            seen.append(p.detach() == 0)
            p.sum().backward()
        opt.step()
    assert [round(x.double().mean().item(), 2) for x in seen] == [0.8, 0.8, 0.0] * 2
    assert torch.equal(seen[0], seen[1])
    assert 0.6 < (seen[0] & seen[3]).double().mean() < 0.68  # independent: 0.8²


def test_no_global_generator_is_read_or_moved():
    before = torch.get_rng_state()
    params, opt = build()
    first = list(train(opt, params, 5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    params, opt = build()
    agree(train(opt, params, 5), first, tolerance=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"probability": 1.0}, "probability"), ({"probability": -0.1}, "probability"), ({"steps_off": 0}, "steps_off")],
)
def test_bad_numbers(options, said):
    with pytest.raises(ValueError, match=said):
        RandomSubsets(parameters(), 0.1, **options)


def test_a_step_needs_a_due_block():
    params, opt = build()
    loss(params, 0).backward()
    with pytest.raises(RateError, match="due"):
        opt.step()


# ── the composite network ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("every", "momentum", "decay"), [(4, 0.9, 0.0), (3, 0.0, 0.2), (1, 0.9, 0.1)])
def test_two_copies_merged_every_k_steps(every, momentum, decay):
    params = parameters()
    opt = Composite(params, H / 4, every, momentum=momentum, weight_decay=decay)

    def actual():
        for batch in range(3 * every):
            opt.zero_grad()
            loss(params, batch).backward()
            opt.step()
            yield values(params)

    agree(actual(), parts(oracle.composite(WHOLE, flat_gradient, H / 4, every, momentum, decay, 3)))


def test_a_parameter_without_gradients_is_left_alone_by_merging():
    moving, idle = parameters()[:2]
    opt = Composite([moving, idle], 0.1, 2)
    with torch.no_grad():
        idle.fill_(0.25)  # after the optimizer was built
    for _ in range(4):
        opt.zero_grad()
        moving.square().sum().backward()
        opt.step()
    assert torch.equal(idle, torch.full_like(idle, 0.25))


def test_replicas_rest_as_they_would_alone():
    """Also after a checkpoint: the seeds of an ensemble are part of it."""
    ensemble = Ensemble(lambda: nn.Linear(6, 4), 3, seed=0)
    x, y = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 4
    models = ensemble.unstack()
    together = RandomSubsets(ensemble.parameters(), 0.1, steps_off=2, momentum=0.9, seed=ensemble.seeds)
    alone = [RandomSubsets(m.parameters(), 0.1, steps_off=2, momentum=0.9, seed=int(ensemble.seeds[i]))
             for i, m in enumerate(models)]  # fmt: skip
    for step in range(7):
        with together.due():
            together.zero_grad()
            ensemble.losses(cross_entropy, x, y).sum().backward()
        together.step()
        for model, opt in zip(models, alone, strict=True):
            with opt.due():
                opt.zero_grad()
                cross_entropy(model(x), y).backward()
            opt.step()
        if step == 3:
            fresh = RandomSubsets(ensemble.parameters(), 0.1, steps_off=2, momentum=0.9)
            fresh.load_state_dict(together.state_dict())
            together = fresh
    for i, model in enumerate(models):
        for name, p in model.named_parameters():
            torch.testing.assert_close(dict(ensemble.named_parameters())[name][i], p, rtol=1e-5, atol=1e-6)


def test_seeds_of_another_number_of_replicas_are_refused():
    opt = RandomSubsets([torch.nn.Parameter(torch.zeros(2, 3))], 0.1, seed=torch.arange(4))
    with pytest.raises(ValueError, match="4 seeds, but a parameter of shape"), opt.due():
        pass
