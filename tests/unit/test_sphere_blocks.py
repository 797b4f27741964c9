"""Sphere per column, matrix, head and packed block: the oracle's rows are these blocks, read by hand."""

import numpy as np
import pytest
import torch

from holonom import Langevin, init
from holonom.constraints import Sphere, View
from tests import manifold_oracle

from .harness import PHYSICS, agree, array, close, each, letters, parameter, repeat, slope, textbook
from .harness import thermostat as thermostat_of

RADII = np.array([0.6, 1.1, 1.9])
CASES = {  # shape, view, per, blocks by hand, radius
    "columns": ((4, 3), None, "column", lambda q: q.T, RADII),
    "columns, transposed": ((3, 4), View(output=1), "column", lambda q: q, 0.7),
    "columns of a kernel": ((4, 2, 3, 1), "conv", "column", lambda q: q.reshape(4, 6).T, 0.7),
    "columns of a stack": ((2, 4, 3), None, "column", lambda q: q.transpose(0, 2, 1), 0.7),
    "matrix": ((4, 3), None, "matrix", lambda q: q.reshape(12), 1.7),
    "vector": ((5,), None, "matrix", lambda q: q, 1.7),
    "kernel": ((3, 2, 2, 2), "conv", "matrix", lambda q: q.reshape(24), 1.7),
    "transposed kernel": ((3, 2, 2), View(output=1), "matrix", lambda q: q.transpose(1, 0, 2).reshape(12), 1.7),
    "experts": ((3, 4, 2), None, "matrix", lambda q: q.reshape(3, 8), RADII),
    "packed": ((6, 2), View(blocks=3), "block", lambda q: q.reshape(3, 4), RADII),
    "packed, inputs first": ((2, 6), View(output=1, blocks=3), "block", lambda q: q.T.reshape(3, 4), RADII),
    "packed in a stack": ((2, 3, 8), View(1, 1, 2), "block", lambda q: q.transpose(0, 2, 1).reshape(2, 2, 12), 0.7),
    "heads": ((4, 3), View(blocks=2), "head", lambda q: q.reshape(2, 6), 0.7),
    "heads of inputs": ((3, 6), View(output=1, blocks=3), "head", lambda q: q.T.reshape(3, 6), RADII),
    "initial columns": ((4, 3), None, "column", lambda q: q.T, "initial"),
    "initial matrix": ((4, 3), None, "matrix", lambda q: q.reshape(12), "initial"),
    "initial experts": ((3, 4, 2), None, "matrix", lambda q: q.reshape(3, 8), "initial"),
}
NUMBERS = PHYSICS["friction"], PHYSICS["temperature"]
FACTOR = 1.7


class Setup:
    """An optimizer whose blocks already move, and the oracle's view of it: an array of blocks, the last axis inside."""

    def __init__(self, rng, case, slack, word, **options):
        self.shape, view, per, read, radius = CASES[case]
        self.places = read(np.arange(np.prod(self.shape)).reshape(self.shape))
        initial = isinstance(radius, str)
        start = rng.standard_normal(self.places.shape)
        norms = np.linalg.norm(start, axis=-1)
        self.r = norms * FACTOR if initial else np.broadcast_to(radius, self.places.shape[:-1])
        if not initial:
            start *= (self.r * (rng.uniform(0.3, 0.9, self.r.shape) if slack else 1.0) / norms)[..., None]
        self.param = parameter(self.write(start))
        given = radius if isinstance(radius, (str, float)) else torch.from_numpy(radius)
        self.slack = slack
        space = Sphere(given, slack=slack, view=view, per=per, factor=FACTOR if initial else 1.0)
        self.optimizer = Langevin([self.param], lr=1.0, scheme=word, constraint=space, **options)
        self.state = self.optimizer.state[self.param]
        if initial:
            close(array(self.state["radius"]), self.r, 1e-14)
            close(array(self.param), self.write(start if slack else start * FACTOR), 1e-14)
        if word != "L":
            w = self.read()[0]
            p = manifold_oracle.sphere_project(w, rng.standard_normal(w.shape), self.r)
            size = self.places.shape[-1]
            self.state["momentum"].copy_(torch.from_numpy(self.write(p[..., :size])))
            if slack:
                self.state["slack_momentum"].copy_(torch.from_numpy(p[..., size:]))

    def blocks(self, x):
        return x.reshape(-1)[self.places]

    def write(self, blocks):
        whole = np.empty(np.prod(self.shape))
        whole[self.places] = blocks
        return whole.reshape(self.shape)

    def join(self, main, slack_name):
        blocks = self.blocks(array(main))
        return np.concatenate([blocks, array(self.state[slack_name])], axis=-1) if self.slack else blocks

    def read(self):
        q = self.join(self.param, "slack")
        if "momentum" not in self.state:
            return (q,)
        return q, self.join(self.state["momentum"], "slack_momentum"), thermostat_of(self.optimizer)

    def draw(self, normals):
        blocks = self.blocks(normals.oracle(self.shape))
        if not self.slack:
            return blocks
        return np.concatenate([blocks, normals.oracle((*self.r.shape, 1), part=1)], axis=-1)

    def slope(self, w):
        if not self.slack:
            return self.blocks(slope(self.write(w)))
        return manifold_oracle.slack_blind(lambda blocks: self.blocks(slope(self.write(blocks))))(w)


@pytest.mark.parametrize("word", ["BAOAB", "BACDEDCAB"])
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
        freedom=setup.places.size - (0 if slack else r.size),
        physics=PHYSICS,
    )
    steps = textbook(word, table, setup.read())
    agree(setup.optimizer, each(slope), steps, setup.read, synchronize=True)


@pytest.mark.parametrize("slack", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_overdamped_step(normals, rng, case, slack):
    setup = Setup(rng, case, slack, "L", temperature=0.3)

    def step(state, h):
        return (manifold_oracle.sphere_od_step(state[0], setup.slope, h, 0.3, setup.draw(normals), setup.r),)

    agree(setup.optimizer, each(slope), repeat(step, setup.read()), setup.read)


@pytest.mark.parametrize("case", CASES)
def test_blocks_and_back(rng, case):
    shape, view, per, read, _ = CASES[case]
    space = Sphere(1.0, slack=False, view=view, per=per)
    q = torch.from_numpy(rng.standard_normal(shape))
    blocks = space.view(q)
    expected = read(array(q))
    np.testing.assert_array_equal(array(blocks), expected)
    assert space.is_view(q) == (blocks.untyped_storage().data_ptr() == q.untyped_storage().data_ptr())
    momentum = space.readable(q.clone())
    assert space.is_view(momentum)
    np.testing.assert_array_equal(array(space.view(momentum)), expected)
    other = torch.zeros_like(q)
    space.write_(other, blocks)
    assert torch.equal(other, q)
    assert space.degrees_of_freedom(q) == q.numel() - expected[..., 0].size
    init.sphere_(other, space)
    close(np.linalg.norm(read(array(other)), axis=-1), np.ones(expected.shape[:-1]), 1e-14)
    assert not torch.equal(other, q)
