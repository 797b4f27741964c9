"""Methods made of two parameter groups: one loss couples the parts, autograd differentiates it."""

import numpy as np
import pytest
import torch

from holonom import Langevin
from tests import oracle

from .harness import PHYSICS, STEPSIZES, array, close, parameter, repeat

SHAPES = ((3, 2), (2,), (4,))  # a weight and its bias make part 1, the last tensor is part 2
SPLIT = 8
INF = float("inf")


def loss(*tensors):
    q = torch.cat([x.reshape(-1) for x in tensors])
    return (q**4 / 4 + q**2 / 2 + 0.3 * q * q.roll(1)).sum() + torch.sin(q[0] * q[-1])


def gradient(q):
    g = q**3 + q + 0.3 * np.roll(q, 1) + 0.3 * np.roll(q, -1)
    g[0] += q[-1] * np.cos(q[0] * q[-1])
    g[-1] += q[0] * np.cos(q[0] * q[-1])
    return g


def cut(flat):
    return [x.reshape(s) for x, s in zip(np.split(flat, (6, 8)), SHAPES, strict=True)]


def flatten(tensors):
    return np.concatenate([array(x).ravel() for x in tensors])


class Run:
    """A library run on part 1 and part 2, each with its own options."""

    def __init__(self, q, first, second):
        self.params = [parameter(x) for x in cut(q)]
        groups = [{"params": self.params[:2], **first}, {"params": self.params[2:], **second}]
        self.optimizer = Langevin(groups, lr=1.0)

    def backward(self):
        self.optimizer.zero_grad()
        loss(*self.params).backward()

    def step(self, h):
        for group in self.optimizer.param_groups:
            group["lr"] = h
        self.backward()
        self.optimizer.step()

    def positions(self):
        return flatten(self.params)

    def momenta(self, params=None):
        """Those of the textbook: what is owed is paid first."""
        self.backward()
        self.optimizer.synchronize()
        return flatten(self.optimizer.state[p]["momentum"] for p in params or self.params)

    def follow(self, states, stepsizes=STEPSIZES, synchronize=False):
        for number, (h, state) in enumerate(zip(stepsizes, states, strict=True), 1):
            self.step(h)
            close(self.positions(), state[0])
            if synchronize or number == len(stepsizes):
                size = state[1].size
                close(self.momenta(self.params if size > SPLIT else self.params[:2]), state[1])


@pytest.fixture
def q(rng):
    return 0.7 * rng.standard_normal(12)


def draw(normals):
    return np.concatenate([normals.oracle(s, index=i).ravel() for i, s in enumerate(SHAPES)])


@pytest.mark.parametrize("synchronize", [False, True])
@pytest.mark.parametrize("second_temperature", [0.0, 0.2])
def test_lol(normals, q, second_temperature, synchronize):
    run = Run(q, {"friction": 0.7, "temperature": 0.3}, {"friction": INF, "temperature": second_temperature})

    def step(state, h):
        noise = draw(normals)
        return oracle.lol(*state, gradient, h, SPLIT, 0.7, 0.3, noise, second_temperature)

    run.follow(repeat(step, (q, 0 * q)), synchronize=synchronize)


def test_dhsgd_is_lol_without_friction_and_noise(q):
    """From its second step on: the first starts from p = 0 and moves part 2 half as far."""
    h = 0.2
    run = Run(q, {"friction": 0.0}, {"friction": INF})
    run.step(h)
    expected = oracle.lol(q, 0 * q, gradient, h, SPLIT, 0.0, 0.0, 0 * q)
    close(run.positions(), expected[0])
    states = repeat(lambda s, h: oracle.dhsgd(*s, gradient, h, SPLIT), (expected[0], expected[1][:SPLIT]), (h,) * 5)
    run.follow(states, (h,) * 5)


@pytest.mark.parametrize("synchronize", [False, True])
def test_dhsgdc_moves_the_second_part_by_h(q, synchronize):
    run = Run(q, {"friction": 0.0}, {"scheme": "L"})
    start = (q, np.zeros(SPLIT))
    run.follow(repeat(lambda s, h: oracle.dhsgdc(*s, gradient, h, SPLIT), start), synchronize=synchronize)


@pytest.mark.parametrize("synchronize", [False, True])
def test_adlala(normals, q, synchronize):
    run = Run(q, dict(PHYSICS, scheme="BACDEDCAB"), {"friction": 0.9, "temperature": 0.1})
    thermostats = []

    def step(state, h):
        first = draw(normals)
        second = np.concatenate([normals.oracle(s, index=i).ravel() for i, s in enumerate(SHAPES[:2])])
        noise = (first[:SPLIT], second), first[SPLIT:]
        state = oracle.adlala(*state, gradient, h, SPLIT, 0.3, 0.2, 0.5, 0.9, 0.1, *noise)
        thermostats.append(state[2])
        return state

    run.follow(((q, p) for q, p, _ in repeat(step, (q, 0 * q, 0.0))), synchronize=synchronize)
    close(array(run.optimizer.state[run.params[0]]["thermostat"]), thermostats[-1])
    assert "thermostat" not in run.optimizer.state[run.params[1]]  # one ξ for the whole part


@pytest.mark.parametrize("word", ["BAOAB", "OBA", "BAAOAAB"])
def test_langevin_in_layers(normals, q, word):
    """(3.25): own γ and τ in every part."""
    friction, temperature = np.repeat([0.4, 2.0], (SPLIT, 4)), np.repeat([0.3, 0.05], (SPLIT, 4))
    groups = [{"scheme": word, "friction": f, "temperature": t} for f, t in ((0.4, 0.3), (2.0, 0.05))]
    run = Run(q, *groups)

    def step(state, h):
        return oracle.run_word(word, *state, gradient, h, friction, temperature, [draw(normals)])[:2]

    run.follow(repeat(step, (q, 0 * q)))


def test_two_adaptive_parts_have_a_thermostat_each(normals, q):
    options = [dict(PHYSICS, temperature=0.3), dict(PHYSICS, temperature=0.05, coupling=1.0)]
    run = Run(q, *({**own, "scheme": "BACDEDCAB"} for own in options))

    def parts(function):
        """Apply function(p, ξ, options, noise) to both parts."""
        return lambda s, t, noise: [
            function(s[1][part], t, s[2][i], options[i], noise[part])
            for i, part in enumerate((slice(SPLIT), slice(SPLIT, None)))
        ]

    cool = parts(lambda p, t, xi, own, noise: oracle.thermostat_decay(p, t, xi))
    shake = parts(lambda p, t, xi, own, noise: oracle.driving_kick(p, t, 0.5, noise))
    regulate = parts(
        lambda p, t, xi, own, noise: oracle.thermostat_update(p, t, xi, own["coupling"], own["temperature"])
    )
    table = {
        "A": lambda s, t: (oracle.drift(*s[:2], t), s[1], s[2]),
        "B": lambda s, t: (s[0], oracle.kick(*s[:2], gradient, t), s[2]),
        "C": lambda s, t: (s[0], np.concatenate(cool(s, t, 0 * q)), s[2]),
        "D": lambda s, t: (s[0], np.concatenate(shake(s, t, draw(normals))), s[2]),
        "E": lambda s, t: (s[0], s[1], regulate(s, t, 0 * q)),
    }
    states = list(repeat(lambda s, h: oracle.compose("BACDEDCAB", table, s, h), (q, 0 * q, (0.0, 0.0))))
    run.follow(s[:2] for s in states)
    close([array(run.optimizer.state[run.params[i]]["thermostat"]) for i in (0, 2)], states[-1][2])


def test_each_part_may_have_its_own_stepsize(normals, q):
    run = Run(q, {"friction": 0.7, "temperature": 0.3}, {"friction": 0.7, "temperature": 0.3})
    state = (q, 0 * q)
    h = np.repeat([0.1, 0.3], (SPLIT, 4))
    for _ in range(4):
        for group, own in zip(run.optimizer.param_groups, (0.1, 0.3), strict=True):
            group["lr"] = own
        run.backward()
        run.optimizer.step()
        state = oracle.baoab(*state, gradient, h, 0.7, 0.3, draw(normals))
        close(run.positions(), state[0])
    close(run.momenta(), state[1])


def test_a_parameter_without_a_gradient_stands_still(normals, q):
    run = Run(q, {"friction": 0.7, "temperature": 0.3}, {"friction": 0.7, "temperature": 0.3})
    run.backward()
    run.params[1].grad = None
    before = array(run.params[1]), array(run.params[0])
    run.optimizer.step()
    np.testing.assert_array_equal(array(run.params[1]), before[0])
    assert (array(run.params[0]) != before[1]).all()
