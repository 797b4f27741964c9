"""Orthogonal: Algorithms 4.1 and 4.2, with the papers' K iterations to the letter, and to convergence."""

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom.constraints import Orthogonal
from tests import manifold_oracle, oracle

from .harness import (
    COLD,
    PHYSICS,
    THERMOSTATS,
    agree,
    array,
    backward,
    close,
    each,
    letters,
    parameter,
    repeat,
    slope,
    textbook,
)
from .harness import thermostat as thermostat_of

VIEWS = {  # name: (shape, view, the shape of a stack of matrices)
    "tall": ((7, 4), None, (1, 7, 4)),
    "wide": ((3, 6), None, (1, 3, 6)),
    "square": ((4, 4), None, (1, 4, 4)),
    "column": ((5, 1), None, (1, 5, 1)),
    "convolution": ((6, 2, 2, 1), "conv", (1, 6, 4)),
    "wide convolution": ((3, 2, 2, 2), "conv", (1, 3, 8)),
    "batch": ((2, 5, 3), "batch", (2, 5, 3)),
    "batch of wide": ((2, 2, 3, 5), "batch", (4, 3, 5)),
    "batch of convolutions": ((2, 4, 2, 3, 1), "batch conv", (2, 4, 6)),
}
STEPSIZES = (0.1, 0.15, 0.05, 0.12, 0.08, 0.1)  # short enough for (4.55) to have a root
WARM = dict(PHYSICS, temperature=0.05, driving_noise=0.2)
NUMBERS = WARM["friction"], WARM["temperature"]
COUNT = 2  # two parameters of one shape are stacked by the library


class Setup:
    """Parameters of one shape; the oracle reads them as a list of tall matrices."""

    def __init__(self, rng, view, word, iterations=None, count=COUNT, **options):
        self.shape, name, self.stack = VIEWS[view]
        self.count = count
        self.params = []
        for _ in range(count):
            tall = [np.linalg.qr(manifold_oracle.tall(m)[0])[0] for m in rng.standard_normal(self.stack)]
            self.params.append(parameter(self.flatten(tall)))
        space = Orthogonal(view=name, iterations=iterations)
        self.optimizer = Langevin(self.params, lr=1.0, scheme=word, constraint=space, **options)
        self.states = [self.optimizer.state[p] for p in self.params]
        self.overdamped = word == "L"
        if self.overdamped:
            return
        self.turning = self.stack[1] == self.stack[2] and iterations is None
        self.strict = iterations is not None
        for state, p in zip(self.states, self.params, strict=True):
            q = self.matrices(array(p))
            tangent = np.stack([manifold_oracle.orthogonal_project(m, 0.5 * rng.standard_normal(m.shape)) for m in q])
            values = np.swapaxes(q, -1, -2) @ tangent if self.turning else tangent
            state[self.momentum].copy_(torch.from_numpy(self.flatten(values)))

    @property
    def momentum(self):
        """Square weights keep QᵀP, others the last chord."""
        return "momentum" if self.strict else "spin" if self.turning else "chord"

    def matrices(self, x):
        """A parameter's tall matrices (stack, r, s)."""
        return np.stack([manifold_oracle.tall(m)[0] for m in x.reshape(self.stack)])

    def flatten(self, tall):
        wide = self.stack[1] < self.stack[2]
        return np.ascontiguousarray(np.stack([m.T if wide else m for m in tall])).reshape(self.shape)

    def read(self):
        q = np.concatenate([self.matrices(array(p)) for p in self.params])
        if self.overdamped:
            return (q,)
        p = np.concatenate([self.matrices(array(s[self.momentum])) for s in self.states])
        return q, q @ p if self.turning else p, thermostat_of(self.optimizer)

    def draw(self, normals):
        return np.concatenate([self.matrices(normals.oracle(self.shape, index=i)) for i in range(self.count)])

    def shake(self, q, normals):
        """Noise for the momenta: that of a square weight is drawn in its own frame."""
        return q @ self.draw(normals) if self.turning else self.draw(normals)

    def slope(self, q):
        """The gradient of all matrices: the loss sees each parameter as a whole."""
        parts = np.split(q, self.count)
        return np.concatenate([self.matrices(slope(self.flatten(part))) for part in parts])

    def freedom(self):
        s = min(self.stack[1:])
        return self.count * (np.prod(self.shape) - self.stack[0] * s * (s + 1) // 2)


def per_matrix(function, *stacks):
    """Apply to every matrix; a tuple of stacks comes back."""
    results = [function(*parts) for parts in zip(*stacks, strict=True)]
    return tuple(map(np.stack, zip(*results, strict=True)))


def table(setup, normals, iterations):
    def kick(q, p, t):
        # manifold_oracle.orthogonal_b asks for a gradient of one matrix: it is given the one of the whole
        return per_matrix(lambda x, y, g: manifold_oracle.orthogonal_b(x, y, lambda _: g, t), q, p, setup.slope(q))

    return letters(
        drift=lambda q, p, t: per_matrix(lambda x, y: manifold_oracle.orthogonal_a(x, y, t, iterations), q, p),
        kick=kick,
        ornstein_uhlenbeck=lambda q, p, t, noise: per_matrix(
            lambda x, y, r: manifold_oracle.orthogonal_o(x, y, t, *NUMBERS, r), q, p, noise
        ),
        project=lambda q, p: per_matrix(lambda x, y: (manifold_oracle.orthogonal_project(x, y),), q, p)[0],
        draw=lambda q: setup.shake(q, normals),
        freedom=setup.freedom(),
        physics=WARM,
    )


def follow(setup, normals, word, iterations=None, synchronize=False):
    steps = textbook(word, table(setup, normals, iterations), setup.read(), STEPSIZES)
    agree(setup.optimizer, each(slope), steps, setup.read, synchronize, STEPSIZES)


@pytest.mark.parametrize("word", ["BAOAB", "OBA", "ABO", "OBABO", "BAAOAAB", *THERMOSTATS])
@pytest.mark.parametrize("view", ["tall", "wide", "square"])
def test_underdamped_words_to_convergence(normals, rng, view, word):
    follow(Setup(rng, view, word, **WARM), normals, word, synchronize=view == "tall")


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("iterations", [None, 5])
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_underdamped(normals, rng, view, iterations, count):
    follow(Setup(rng, view, "BAOAB", iterations, count, **WARM), normals, "BAOAB", iterations)


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("view", ["tall", "wide", "square"])
def test_the_papers_iterations_underdamped(normals, rng, view, iterations):
    """BAOAB with K iterations, converged or not; what they leave is carried into the next step.

    Off the manifold Π is not idempotent, so it matters how often it is applied: once to the noise alone, and once
    to the two half kicks that share a gradient.
    """
    setup = Setup(rng, view, "BAOAB", iterations, **WARM)
    oracle_letters = table(setup, normals, iterations)

    def shake(state, t):
        q, p, xi = state
        amplitude = oracle.ornstein_uhlenbeck(0.0, t, *NUMBERS, 1.0)
        decay = oracle.ornstein_uhlenbeck(1.0, t, *NUMBERS, 0.0)
        noise = per_matrix(lambda x, r: (manifold_oracle.orthogonal_project(x, r),), q, setup.draw(normals))[0]
        return q, decay * p + amplitude * noise, xi

    def steps(state):
        owed = 0.0
        for h in STEPSIZES:
            state = oracle_letters["B"](state, (owed + h) / 2)
            state = oracle.compose("AOA", {**oracle_letters, "O": shake}, state, h)
            owed = h
            yield state

    state = setup.read()
    for h, expected in zip(STEPSIZES, steps(state), strict=True):
        backward(setup.optimizer, each(slope))
        setup.optimizer.param_groups[0]["lr"] = h
        setup.optimizer.step()
        for actual, wanted in zip(setup.read(), expected, strict=True):
            close(actual, wanted)


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("word", ["BAOAB", "OBA", "BACDEDCAB"])
@pytest.mark.parametrize("view", ["tall", "wide", "square"])
def test_few_iterations_differ_from_the_two_gradient_form_by_less_than_they_leave(normals, rng, view, word, iterations):
    setup = Setup(rng, view, word, iterations, **WARM)
    states = list(textbook(word, table(setup, normals, iterations), setup.read(), STEPSIZES))
    residual = max(np.abs(m.T @ m - np.eye(m.shape[1])).max() for q, _, _ in states for m in q)
    tolerance = 1e-12 + 1e-2 * residual
    agree(setup.optimizer, each(slope), states, setup.read, stepsizes=STEPSIZES, tolerance=tolerance)
    assert residual < 1e-2


@pytest.mark.parametrize("temperature", [0.0, 0.02])
@pytest.mark.parametrize("iterations", [None, 1, 2, 5])
@pytest.mark.parametrize("view", VIEWS)
def test_overdamped_step(normals, rng, view, iterations, temperature):
    setup = Setup(rng, view, "L", iterations, temperature=temperature)

    def step(state, h):
        def one(q, g, noise):
            return (manifold_oracle.orthogonal_od_step(q, lambda _: g, h, temperature, noise, iterations),)

        return per_matrix(one, state[0], setup.slope(state[0]), setup.draw(normals))

    agree(setup.optimizer, each(slope), repeat(step, setup.read(), STEPSIZES), setup.read, stepsizes=STEPSIZES)


@pytest.mark.parametrize("word", ["L", "BAOAB"])
def test_few_iterations_leave_the_manifold_and_convergence_does_not(normals, rng, word):
    residuals = {}
    for iterations in (1, 2, 5, None):
        setup = Setup(np.random.default_rng(3), "tall", word, iterations, **WARM)
        for h in STEPSIZES:
            for p in setup.params:
                p.grad = torch.from_numpy(slope(array(p)))
            setup.optimizer.param_groups[0]["lr"] = h
            setup.optimizer.step()
        residuals[iterations] = setup.optimizer.residuals()[0]
    assert residuals[1] > residuals[2] > residuals[5] > residuals[None]
    assert residuals[None] < 1e-14


def test_a_looser_tolerance_is_met_and_not_much_more(rng):
    setup = Setup(rng, "tall", "L", **COLD)
    loose = Langevin([parameter(array(setup.params[0]))], lr=0.3, scheme="L", constraint=Orthogonal(tolerance=1e-4))
    p = loose.param_groups[0]["params"][0]
    loose.param_groups[0]["step"] = 1  # not a step that polishes
    p.grad = torch.from_numpy(slope(array(p)))
    loose.step()
    residual = np.abs(array(p).T @ array(p) - np.eye(4)).max()
    assert 1e-12 < residual < 1e-4


def test_shapes_of_one_group_do_not_disturb_each_other(normals, rng):
    """Different shapes, and parameters of one shape among them, in one group."""
    matrices = [np.linalg.qr(rng.standard_normal(shape))[0] for shape in ((5, 2), (4, 4), (5, 2), (3, 3))]
    params = [parameter(m) for m in matrices]
    optimizer = Langevin(params, lr=0.1, scheme="L", temperature=0.02, constraint=Orthogonal(), seed=0)
    for _ in range(5):
        for p in params:
            p.grad = torch.from_numpy(slope(array(p)))
        optimizer.step()
        matrices = [
            manifold_oracle.orthogonal_od_step(m, slope, 0.1, 0.02, normals.oracle(m.shape, index=i))
            for i, m in enumerate(matrices)
        ]
        for p, m in zip(params, matrices, strict=True):
            close(array(p), m)


@pytest.mark.parametrize("word", ["L", "OBA", "BAOAB"])
def test_large_matrices_alone_and_small_ones_together(word, monkeypatch):
    """Stacked or one after the other, they go the same way."""

    def trained(large):
        monkeypatch.setattr("holonom._step.buckets.MAX_STACKED", large)
        draw = torch.Generator().manual_seed(0)
        weights = [torch.randn(4, 7, generator=draw, dtype=torch.float64) for _ in range(3)]
        params = [torch.nn.Parameter(torch.linalg.qr(w.mT).Q.mT.contiguous()) for w in weights]
        opt = Langevin(params, 0.1, scheme=word, temperature=0.1, constraint=Orthogonal(), seed=0)
        for _ in range(10):
            for p in params:
                p.grad = p.detach().sin()
            opt.step()
        return [p.detach() for p in params]

    torch.testing.assert_close(trained(1), trained(1000), rtol=1e-12, atol=1e-13)
