"""Sphere: rows, with their slack variable as one more coordinate, are the oracle's rows."""

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom.constraints import Sphere
from tests import manifold_oracle

from .harness import PHYSICS, WORDS, agree, array, close, each, letters, parameter, repeat, slope, textbook
from .harness import thermostat as thermostat_of

ROW_RADII = torch.tensor([0.1, 0.5, 1.0, 4.0], dtype=torch.float64)
CASES = {  # shape, view, rows, radius
    "matrix": ((4, 3), None, (4, 3), 0.7),
    "one row": ((5,), None, (5,), 1.5),
    "radius per row": ((4, 3), None, (4, 3), ROW_RADII),
    "convolution": ((4, 2, 3, 2), "conv", (4, 12), ROW_RADII),
    "stack": ((2, 4, 3), "batch", (2, 4, 3), 0.7),
    "stack, radius per row": ((2, 4, 3), "batch", (2, 4, 3), torch.stack([ROW_RADII, 2 * ROW_RADII])),
}
NUMBERS = PHYSICS["friction"], PHYSICS["temperature"]


class Setup:
    """A Sphere optimizer whose rows already move, and the oracle's view of it."""

    def __init__(self, rng, case, slack, word, speed=1.0, **options):
        shape, view, self.rows, radius = CASES[case]
        self.r = np.broadcast_to(np.asarray(radius, dtype=float), self.rows[:-1])
        directions = rng.standard_normal(self.rows)
        lengths = self.r * (rng.uniform(0.1, 0.95, self.r.shape) if slack else 1.0)
        rows = directions * (lengths / np.linalg.norm(directions, axis=-1))[..., None]
        self.slack, self.shape = slack, shape
        self.param = parameter(rows.reshape(shape))
        space = Sphere(radius, slack=slack, view=view)
        self.optimizer = Langevin([self.param], lr=1.0, scheme=word, constraint=space, **options)
        self.state = self.optimizer.state[self.param]
        if word != "L":
            w = self.read()[0]
            p = manifold_oracle.sphere_project(w, speed * rng.standard_normal(w.shape), self.r)
            self.state["momentum"].copy_(torch.from_numpy(p[..., : self.rows[-1]].reshape(shape)))
            if slack:
                self.state["slack_momentum"].copy_(torch.from_numpy(p[..., self.rows[-1] :]))

    def join(self, main, slack_name):
        rows = main.reshape(self.rows)
        return np.concatenate([rows, array(self.state[slack_name])], axis=-1) if self.slack else rows

    def read(self):
        q = self.join(array(self.param), "slack")
        if "momentum" not in self.state:
            return (q,)
        return q, self.join(array(self.state["momentum"]), "slack_momentum"), thermostat_of(self.optimizer)

    def draw(self, normals):
        rows = normals.oracle(self.shape).reshape(self.rows)
        if not self.slack:
            return rows
        return np.concatenate([rows, normals.oracle((*self.rows[:-1], 1), part=1)], axis=-1)

    def slope(self, w):
        """∂L/∂w of the whole parameter; the loss does not see the slack."""
        if not self.slack:
            return slope(w.reshape(self.shape)).reshape(self.rows)
        return manifold_oracle.slack_blind(lambda rows: slope(rows.reshape(self.shape)).reshape(self.rows))(w)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("slack", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_underdamped_words(normals, rng, case, slack, word):
    setup = Setup(rng, case, slack, word, **PHYSICS)
    r = setup.r
    table = letters(
        drift=lambda w, p, t: manifold_oracle.sphere_a(w, p, t, r),
        kick=lambda w, p, t: manifold_oracle.sphere_b(w, p, setup.slope, t, r),
        ornstein_uhlenbeck=lambda w, p, t, noise: manifold_oracle.sphere_o(w, p, t, *NUMBERS, noise, r),
        project=lambda w, p: manifold_oracle.sphere_project(w, p, r),
        draw=lambda w: setup.draw(normals),
        freedom=np.prod(setup.rows) - (0 if slack else r.size),
        physics=PHYSICS,
    )
    steps = textbook(word, table, setup.read())
    agree(setup.optimizer, each(slope), steps, setup.read, synchronize=case == "radius per row")


@pytest.mark.parametrize("temperature", [0.0, 0.3])
@pytest.mark.parametrize("slack", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_overdamped_step(normals, rng, case, slack, temperature):
    setup = Setup(rng, case, slack, "L", temperature=temperature)

    def step(state, h):
        return (manifold_oracle.sphere_od_step(state[0], setup.slope, h, temperature, setup.draw(normals), setup.r),)

    agree(setup.optimizer, each(slope), repeat(step, setup.read()), setup.read)


@pytest.mark.parametrize("slack", [True, False])
def test_great_circles_go_all_the_way_round(rng, slack):
    setup = Setup(rng, "matrix", slack, "OBA", speed=10.0, friction=0.0)
    w, p, _ = setup.read()
    speed = np.linalg.norm(p, axis=-1)
    assert (speed / 0.7 > 2 * np.pi).any()  # more than one turn a step
    steps = ((*s, 0.0) for s in repeat(lambda s, h: manifold_oracle.sphere_a(*s, h, setup.r), (w, p), (1.0, 1.0)))
    agree(setup.optimizer, each(np.zeros_like), steps, setup.read, stepsizes=(1.0, 1.0), tolerance=1e-11)
    close(np.linalg.norm(setup.read()[1], axis=-1), speed, 1e-11)


def test_a_row_at_rest_stays(rng):
    setup = Setup(rng, "matrix", True, "OBA", speed=0.0, friction=0.0)
    before = setup.read()
    setup.param.grad = torch.zeros_like(setup.param)
    setup.optimizer.step()
    close(setup.read()[0], before[0], 1e-15)
    assert setup.optimizer.residuals()[0] < 1e-15
