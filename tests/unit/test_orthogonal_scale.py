"""Orthogonal with a scale: W = cQ moves as the oracle's matrices with WᵀW = c²I, c one for all or each block's own."""

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom.constraints import Orthogonal, View
from tests import manifold_oracle

from .harness import PHYSICS, agree, array, close, each, letters, parameter, repeat, slope, textbook
from .harness import thermostat as thermostat_of

CASES = {  # shape, options, tall matrices by hand
    "tall": ((6, 3), {}, lambda q: q[None]),
    "wide": ((3, 6), {}, lambda q: q.T[None]),
    "square": ((4, 4), {}, lambda q: q[None]),
    "tall, K": ((6, 3), {"iterations": 5}, lambda q: q[None]),
    "experts": ((2, 5, 3), {"per": "matrix"}, lambda q: q),
    "heads": ((4, 5), {"view": View(blocks=2), "per": "head"}, lambda q: q.reshape(2, 2, 5).transpose(0, 2, 1)),
    "heads of inputs": (
        (5, 4), {"view": View(output=1, blocks=2), "per": "head"},
        lambda q: q.T.reshape(2, 2, 5).transpose(0, 2, 1),
    ),
    "packed as one": ((6, 4), {"view": View(blocks=3), "per": "matrix"}, lambda q: q[None]),
}  # fmt: skip
STEPSIZES = (0.1, 0.15, 0.05, 0.12, 0.08, 0.1)  # short enough for (4.55) to have a root
WARM = dict(PHYSICS, temperature=0.05, driving_noise=0.2)
COUNT = 2  # parameters of one shape are stacked, each with scales of its own


class Setup:
    """Parameters of one shape; the oracle reads them as tall matrices, all in one stack."""

    def __init__(self, rng, case, scale, word, **options):
        self.shape, kind, read = CASES[case]
        self.places = read(np.arange(np.prod(self.shape)).reshape(self.shape))
        blocks, r, s = self.places.shape
        self.scales = rng.uniform(0.6, 1.8, (COUNT, blocks)) if scale == "initial" else np.full((COUNT, blocks), scale)
        q = np.stack([np.linalg.qr(rng.standard_normal((r, s)))[0] for _ in range(COUNT * blocks)])
        w = q.reshape(COUNT, blocks, r, s) * self.scales[..., None, None]
        self.params = [parameter(self.write(one)) for one in w]
        space = Orthogonal(scale=scale, **kind)
        self.optimizer = Langevin(self.params, lr=1.0, scheme=word, constraint=space, **options)
        self.states = [self.optimizer.state[p] for p in self.params]
        if scale == "initial":
            for state, own in zip(self.states, self.scales, strict=True):
                close(array(state["radius"]).reshape(-1), own, 1e-14)
        self.overdamped, self.turning = word == "L", r == s and "iterations" not in kind
        self.momentum = "momentum" if "iterations" in kind else "spin" if self.turning else "chord"
        self.freedom = self.places.size * COUNT - blocks * COUNT * s * (s + 1) // 2
        self.iterations = kind.get("iterations")
        if self.overdamped:
            return
        for state, own, c in zip(self.states, w, self.scales, strict=True):
            p = [manifold_oracle.orthogonal_project(*x) for x in zip(own, 0.5 * rng.standard_normal(own.shape), c)]
            values = np.stack([x.T @ y / k for x, y, k in zip(own, p, c, strict=True)]) if self.turning else np.stack(p)
            state[self.momentum].copy_(torch.from_numpy(self.write(values)))

    def write(self, matrices):
        whole = np.empty(np.prod(self.shape))
        whole[self.places] = matrices
        return whole.reshape(self.shape)

    def matrices(self, arrays):
        return np.concatenate([x.reshape(-1)[self.places] for x in arrays])

    def unit(self, w):
        return w / self.scales.reshape(-1, 1, 1)

    def read(self):
        w = self.matrices(map(array, self.params))
        if self.overdamped:
            return (w,)
        p = self.matrices(array(s[self.momentum]) for s in self.states)
        return w, self.unit(w) @ p if self.turning else p, thermostat_of(self.optimizer)

    def draw(self, w, normals):
        """Noise for the momenta: that of a square weight is drawn in its own frame."""
        drawn = self.matrices(normals.oracle(self.shape, index=i) for i in range(COUNT))
        return self.unit(w) @ drawn if self.turning and not self.overdamped else drawn

    def slope(self, w):
        """The gradient of all matrices: the loss sees each parameter as a whole."""
        return self.matrices(slope(self.write(part)) for part in np.split(w, COUNT))

    def each(self, function, *stacks):
        found = [function(*parts) for parts in zip(*stacks, self.scales.reshape(-1), strict=True)]
        return tuple(map(np.stack, zip(*found, strict=True)))


@pytest.mark.parametrize("word", ["BAOAB", "BACDEDCAB"])
@pytest.mark.parametrize("scale", [2.5, 0.3, "initial"])
@pytest.mark.parametrize("case", CASES)
def test_underdamped_words(normals, rng, case, scale, word):
    setup, oracle = Setup(rng, case, scale, word, **WARM), manifold_oracle
    numbers, each_of = (WARM["friction"], WARM["temperature"]), setup.each
    table = letters(
        drift=lambda w, p, t: each_of(lambda x, y, c: oracle.orthogonal_a(x, y, t, setup.iterations, c), w, p),
        kick=lambda w, p, t: each_of(
            lambda x, y, g, c: oracle.orthogonal_b(x, y, lambda _: g, t, c), w, p, setup.slope(w)
        ),
        ornstein_uhlenbeck=lambda w, p, t, noise: each_of(
            lambda x, y, z, c: oracle.orthogonal_o(x, y, t, *numbers, z, c), w, p, noise
        ),
        project=lambda w, p: each_of(lambda x, y, c: (oracle.orthogonal_project(x, y, c),), w, p)[0],
        draw=lambda w: setup.draw(w, normals),
        freedom=setup.freedom,
        physics=WARM,
    )
    steps = textbook(word, table, setup.read(), STEPSIZES)
    agree(setup.optimizer, each(slope), steps, setup.read, case in ("tall", "square"), STEPSIZES)


@pytest.mark.parametrize("temperature", [0.0, 0.02])
@pytest.mark.parametrize("scale", [2.5, "initial"])
@pytest.mark.parametrize("case", CASES)
def test_overdamped_step(normals, rng, case, scale, temperature):
    setup = Setup(rng, case, scale, "L", temperature=temperature)

    def one(w, g, noise, h, c):
        return (manifold_oracle.orthogonal_od_step(w, lambda _: g, h, temperature, noise, setup.iterations, c),)

    def step(state, h):
        w = state[0]
        return setup.each(lambda x, g, z, c: one(x, g, z, h, c), w, setup.slope(w), setup.draw(w, normals))

    agree(setup.optimizer, each(slope), repeat(step, setup.read(), STEPSIZES), setup.read, stepsizes=STEPSIZES)
