"""Circle: one angle and one momentum along it are the thesis's four variables (θ, ξ, p_θ, p_ξ)."""

import math

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle
from tests import manifold_oracle

from .harness import COLD, PHYSICS, WORDS, agree, array, close, each, letters, parameter, repeat, slope, textbook
from .harness import thermostat as thermostat_of

SHAPE = (3, 4)
RADII = {
    "float": 0.7,
    "one": torch.tensor(1.3),
    "per row": torch.tensor([[0.05], [0.5], [5.0]], dtype=torch.float64),
    "per weight": 0.2 + torch.arange(12, dtype=torch.float64).reshape(SHAPE),
}


class Setup:
    """A Circle optimizer whose weights already move, and the oracle's view of it."""

    def __init__(self, rng, radius, word, speed=1.0, **options):
        self.r = np.broadcast_to(np.asarray(radius, dtype=float), SHAPE)
        self.theta = 0.9 * self.r * rng.uniform(-1, 1, SHAPE)
        self.slack = np.sqrt(self.r**2 - self.theta**2)
        self.param = parameter(self.theta)
        self.optimizer = Langevin([self.param], lr=1.0, scheme=word, constraint=Circle(radius), **options)
        self.state = self.optimizer.state[self.param]
        if word != "L":
            self.state["momentum"].copy_(torch.from_numpy(speed * self.r * rng.standard_normal(SHAPE)))

    def along(self, q, v):
        """v along the circle at (θ, ξ): the tangent d(θ, ξ)/dφ is (cos φ, −sin φ) = (ξ, −θ)/r."""
        return np.stack([v * q[1] / self.r, -v * q[0] / self.r])

    def read(self):
        q = np.stack([array(self.param), self.r * np.cos(2 * math.pi * array(self.state["turns"]))])
        if "momentum" not in self.state:
            return (q,)
        return q, self.along(q, array(self.state["momentum"])), thermostat_of(self.optimizer)


@pytest.mark.parametrize("synchronize", [False, True])
@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("word", WORDS)
def test_underdamped_words(normals, rng, word, radius, synchronize):
    setup = Setup(rng, RADII[radius], word, **PHYSICS)
    r = setup.r
    numbers = PHYSICS["friction"], PHYSICS["temperature"]

    def pair(four):
        return np.stack(four[:2]), np.stack(four[2:])

    table = letters(
        drift=lambda q, p, t: pair(manifold_oracle.c_cola_ud_a(*q, *p, t, r)),
        kick=lambda q, p, t: pair(manifold_oracle.c_cola_ud_b(*q, *p, slope, t, r)),
        ornstein_uhlenbeck=lambda q, p, t, noise: pair(manifold_oracle.c_cola_ud_o(*q, *p, t, *numbers, noise, r)),
        project=lambda q, p: np.stack(manifold_oracle.c_cola_project(*q, *p, r)),
        draw=lambda q: setup.along(q, normals.oracle(SHAPE)),
        freedom=r.size,  # two coordinates and one constraint a weight
        physics=PHYSICS,
    )
    state = setup.read()
    close(state[0], np.stack([setup.theta, setup.slack]))
    agree(setup.optimizer, each(slope), textbook(word, table, state), setup.read, synchronize)


@pytest.mark.parametrize("temperature", [0.0, 0.3])
@pytest.mark.parametrize("radius", RADII)
def test_overdamped_step(normals, rng, radius, temperature):
    """(4.47); with r = 0.05 and τ = 0.3 a step goes many times around, through every quadrant of atan2."""
    setup = Setup(rng, RADII[radius], "L", temperature=temperature)

    def step(state, h):
        noise = normals.oracle(SHAPE), normals.oracle(SHAPE, part=1)
        return (np.stack(manifold_oracle.c_cola_od_step(*state[0], slope, h, temperature, noise, setup.r)),)

    agree(setup.optimizer, each(slope), repeat(step, setup.read()), setup.read)


def test_overdamped_weights_reach_the_far_half_of_their_circles(rng):
    setup = Setup(rng, 0.05, "L", temperature=0.3)
    setup.param.grad = torch.zeros_like(setup.param)
    setup.optimizer.step()
    slack = setup.read()[0][1]
    assert (slack < 0).any()
    assert (slack > 0).any()


@pytest.mark.parametrize("turns", [0.3, 0.9, 40.0])
def test_rotation_is_exact_through_whole_turns(rng, turns):
    setup = Setup(rng, 0.7, "OBA", speed=2 * math.pi * turns, **dict(COLD, friction=0.0))
    q, p, _ = setup.read()
    states = repeat(lambda s, h: (*manifold_oracle.c_cola_ud_a(*s[:2], *s[2:], h, setup.r),), (*q, *p), (1.0, 1.0))
    expected = [(np.stack(s[:2]), np.stack(s[2:]), 0.0) for s in states]
    agree(
        setup.optimizer,
        each(np.zeros_like),
        expected,
        setup.read,
        stepsizes=(1.0, 1.0),
        tolerance=1e-12 * (1 + turns * 10),
    )
    assert (np.abs(array(setup.state["turns"])) <= 0.5).all()  # whole turns are taken out


def test_the_constraint_holds_identically(normals, rng):
    setup = Setup(rng, RADII["per row"], "BAOAB", **PHYSICS)
    for _ in range(50):
        setup.param.grad = torch.from_numpy(slope(array(setup.param)))
        setup.optimizer.step()
    assert setup.optimizer.residuals()[0] < 1e-14
    assert (np.abs(array(setup.param)) <= setup.r).all()
