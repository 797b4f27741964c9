"""LevelSet: RATTLE and both projections, on an ellipsoid and on the curve where a plane cuts it."""

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom.constraints import LevelSet
from holonom.constraints.levelset.jacobian import linearised
from tests import manifold_oracle

from .harness import PHYSICS, THERMOSTATS, agree, array, each, letters, parameter, repeat, slope, textbook
from .harness import thermostat as thermostat_of

AXES, PLANE = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, -1.0, 0.5, 0.2])
STEPSIZES = (0.1, 0.15, 0.05, 0.12, 0.08)
WARM = dict(PHYSICS, temperature=0.05, driving_noise=0.2)
NUMBERS = WARM["friction"], WARM["temperature"]


def torch_ellipsoid(q):
    return (torch.from_numpy(AXES) * q.reshape(-1) ** 2).sum() - 4.0


def torch_curve(q):
    return torch.stack([torch_ellipsoid(q), (torch.from_numpy(PLANE) * q.reshape(-1)).sum() - 0.3])


def ellipsoid(q):
    return np.array([np.sum(AXES * q**2) - 4.0])


def curve(q):
    return np.array([np.sum(AXES * q**2) - 4.0, PLANE @ q - 0.3])


def ellipsoid_jacobian(q):
    return (2 * AXES * q)[None]


def curve_jacobian(q):
    return np.stack([2 * AXES * q, PLANE])


SETS = {
    "ellipsoid": (torch_ellipsoid, ellipsoid, ellipsoid_jacobian),
    "curve": (torch_curve, curve, curve_jacobian),
}
SHAPES = {"vector": ((4,), 0), "matrix": ((2, 2), 0), "batch": ((3, 4), 1), "batch of matrices": ((2, 2, 2), 1)}


class Setup:
    """A LevelSet optimizer whose blocks already move; the oracle reads blocks as flat vectors (q, ξ)."""

    def __init__(self, rng, name, layout, slack, word, direction="new", **options):
        g, self.g, self.jacobian = SETS[name]
        self.slack, self.m = slack, len(self.g(np.ones(4)))
        if slack:
            self.g, self.jacobian = with_slack(self.g, self.jacobian, self.m)
        self.shape, batch_dims = SHAPES[layout]
        blocks = rng.standard_normal((self.count, 4))
        _, plain, jacobian = SETS[name]
        blocks = np.stack([manifold_oracle.return_along_new(q, plain, jacobian) for q in blocks])
        if slack:
            inside = np.array([0.05, 0.05, -0.2, 0.1])
            blocks = inside + 0.7 * (blocks - inside)
        self.param = parameter(blocks.reshape(self.shape))
        space = LevelSet(g, slack=slack, direction=direction, batch_dims=batch_dims)
        self.optimizer = Langevin([self.param], lr=1.0, scheme=word, constraint=space, **options)
        self.state = self.optimizer.state[self.param]
        if word != "L":
            q = self.read()[0]
            p = self.per_block(
                lambda x, y: (manifold_oracle.level_set_project(x, y, self.jacobian),), q, rng.standard_normal(q.shape)
            )[0]
            self.state["momentum"].copy_(torch.from_numpy(0.5 * p[:, :4].reshape(self.shape)))
            if slack:
                self.state["slack_momentum"].copy_(torch.from_numpy(0.5 * p[:, 4:]))

    @property
    def count(self):
        return int(np.prod(self.shape)) // 4

    def join(self, main, slack):
        blocks = main.reshape(self.count, 4)
        return np.concatenate([blocks, slack.reshape(self.count, self.m)], axis=1) if self.slack else blocks

    def read(self):
        q = self.join(array(self.param), array(self.state["slack"]) if self.slack else None)
        if "momentum" not in self.state:
            return (q,)
        p = self.join(array(self.state["momentum"]), array(self.state["slack_momentum"]) if self.slack else None)
        return q, p, thermostat_of(self.optimizer)

    def draw(self, normals):
        return self.join(
            normals.oracle(self.shape), normals.oracle((self.count, self.m), part=1) if self.slack else None
        )

    def slope(self, q):
        gradient = slope(q[:, :4].reshape(self.shape)).reshape(self.count, 4)
        return np.pad(gradient, ((0, 0), (0, q.shape[1] - 4)))

    @staticmethod
    def per_block(function, *stacks):
        results = [function(*parts) for parts in zip(*stacks, strict=True)]
        return tuple(map(np.stack, zip(*results, strict=True)))


def with_slack(g, jacobian, m):
    """g(q) + ξ² on x = (q, ξ)."""

    def lifted(x):
        return g(x[:4]) + x[4:] ** 2

    return lifted, lambda x: np.concatenate([jacobian(x[:4]), 2 * np.diag(x[4:])], axis=1)


def table(setup, normals):
    j, each_block = setup.jacobian, setup.per_block

    def ornstein_uhlenbeck(q, p, t, noise):
        return each_block(lambda x, y, r: manifold_oracle.level_set_o(x, y, j, t, *NUMBERS, r), q, p, noise)

    def kick(q, p, t):
        return each_block(lambda x, y, f: manifold_oracle.level_set_b(x, y, lambda _: f, j, t), q, p, setup.slope(q))

    return letters(
        drift=lambda q, p, t: each_block(lambda x, y: manifold_oracle.level_set_a(x, y, setup.g, j, t), q, p),
        kick=kick,
        ornstein_uhlenbeck=ornstein_uhlenbeck,
        project=lambda q, p: each_block(lambda x, y: (manifold_oracle.level_set_project(x, y, j),), q, p)[0],
        draw=lambda q: setup.draw(normals),
        freedom=getattr(setup, "freedom", setup.count * (4 if setup.slack else 4 - setup.m)),
        physics=WARM,
    )


class Mixed(Setup):
    """On the ellipsoid, on one side of the plane: an equality and an inequality."""

    slack, m, shape = True, 1, (3, 4)

    def __init__(self, rng, word, direction="new", **options):
        _, jacobian = with_slack(curve, curve_jacobian, 2)
        self.jacobian = lambda x: np.delete(jacobian(np.insert(x, 4, 0.0)), 4, axis=1)
        self.g = lambda x: curve(x[:4]) + np.array([0.0, x[4] ** 2])
        blocks = rng.standard_normal((3, 4))
        blocks = np.stack([manifold_oracle.return_along_new(q, ellipsoid, ellipsoid_jacobian) for q in blocks])
        blocks *= np.where(blocks @ PLANE > 0.2, -1.0, 1.0)[:, None]
        space = LevelSet(
            torch_ellipsoid,
            inequalities=lambda q: (torch.from_numpy(PLANE) * q).sum() - 0.3,
            direction=direction,
            batch_dims=1,
        )
        self.param = parameter(blocks)
        self.optimizer = Langevin([self.param], lr=1.0, scheme=word, constraint=space, **options)
        self.state = self.optimizer.state[self.param]

    freedom = 9


@pytest.mark.parametrize("word", ["BAOAB", "OBA", *THERMOSTATS])
def test_an_equality_and_an_inequality(normals, rng, word):
    setup = Mixed(rng, word, **WARM)
    steps = textbook(word, table(setup, normals), setup.read(), STEPSIZES)
    agree(setup.optimizer, each(slope), steps, setup.read, stepsizes=STEPSIZES)


@pytest.mark.parametrize("direction", ["old", "new"])
def test_an_overdamped_step_with_an_equality_and_an_inequality(normals, rng, direction):
    overdamped_steps(Mixed(rng, "L", direction, temperature=0.02), normals, direction, 0.02)


@pytest.mark.parametrize("slack", [False, True])
@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("name", SETS)
def test_baoab(normals, rng, name, layout, slack):
    setup = Setup(rng, name, layout, slack, "BAOAB", **WARM)
    steps = textbook("BAOAB", table(setup, normals), setup.read(), STEPSIZES)
    agree(setup.optimizer, each(slope), steps, setup.read, layout == "batch", STEPSIZES)


@pytest.mark.parametrize("slack", [False, True])
@pytest.mark.parametrize("word", ["OBA", "ABO", "OBABO", "BAAOAAB", *THERMOSTATS])
def test_other_words(normals, rng, word, slack):
    setup = Setup(rng, "curve", "vector", slack, word, **WARM)
    steps = textbook(word, table(setup, normals), setup.read(), STEPSIZES)
    agree(setup.optimizer, each(slope), steps, setup.read, stepsizes=STEPSIZES)


@pytest.mark.parametrize("slack", [False, True])
@pytest.mark.parametrize(("name", "layout", "temperature"), [("ellipsoid", "vector", 0.0), ("curve", "batch", 0.02)])
@pytest.mark.parametrize("direction", ["old", "new"])
def test_overdamped_step(normals, rng, direction, name, layout, temperature, slack):
    """(4.41) along the gradients at the old point, (4.42) at the new one."""
    overdamped_steps(
        Setup(rng, name, layout, slack, "L", direction, temperature=temperature), normals, direction, temperature
    )


def overdamped_steps(setup, normals, direction, temperature):
    one_step = {"old": manifold_oracle.level_set_od_along_old, "new": manifold_oracle.level_set_od_along_new}[direction]

    def step(state, h):
        def one(x, f, noise):
            return (one_step(x, lambda _: f, setup.g, setup.jacobian, h, temperature, noise),)

        return setup.per_block(one, state[0], setup.slope(state[0]), setup.draw(normals))

    stepsizes = (0.02, 0.05, 0.03)
    agree(setup.optimizer, each(slope), repeat(step, setup.read(), stepsizes), setup.read, stepsizes=stepsizes)


@pytest.mark.parametrize("slack", [False, True])
@pytest.mark.parametrize("word", ["BAOAB", "L"])
def test_residual_and_cotangency_stay_at_rounding(normals, rng, word, slack):
    setup = Setup(rng, "curve", "batch", slack, word, "old", **WARM)
    setup.optimizer.param_groups[0]["lr"] = 0.05
    for _ in range(5):
        setup.param.grad = torch.from_numpy(slope(array(setup.param)))
        setup.optimizer.step()
        assert setup.optimizer.residuals()[0] < 1e-13
        assert setup.optimizer.cotangencies()[0] < 1e-12


def test_one_may_look_in_inference_mode(rng):
    optimizer = Setup(rng, "curve", "batch", True, "BAOAB").optimizer
    seen = optimizer.residuals(), optimizer.cotangencies()
    with torch.inference_mode():
        assert (optimizer.residuals(), optimizer.cotangencies()) == seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_function_may_hold_tensors_of_single_precision(rng, dtype):
    plane = torch.tensor([[1.0, 2.0, -1.0, 0.5]])
    param = torch.nn.Parameter(torch.tensor([0.3, 0.1, -0.2, 0.4], dtype=dtype))
    with pytest.warns(UserWarning, match="LevelSet: 1 of 1"):
        optimizer = Langevin([param], 0.1, constraint=LevelSet(lambda q: plane @ q - 0.25))
    param.grad = torch.ones_like(param)
    optimizer.step()
    assert optimizer.residuals()[0] <= 4 * torch.finfo(dtype).eps


def test_no_blocks_at_all():
    param = torch.nn.Parameter(torch.zeros(0, 3))
    optimizer = Langevin([param], 0.1, constraint=LevelSet(lambda q: q.square().sum() - 1, batch_dims=1))
    param.grad = torch.zeros(0, 3)
    optimizer.step()
    assert optimizer.residuals() == [0.0]


def test_functions_that_choose_their_own_precision():
    plane = torch.tensor([[1.0, 2.0, -1.0, 0.5]])
    param = torch.nn.Parameter(torch.tensor([0.3, 0.1, -0.2, 0.4]))
    with pytest.warns(UserWarning, match="LevelSet: 1 of 1"):
        optimizer = Langevin([param], 0.1, constraint=LevelSet(lambda q: plane @ q.float() - 0.25))
    assert optimizer.residuals()[0] < 1e-6


def test_linearising_can_be_traced():
    x = torch.tensor([[0.3, 0.1, -0.2], [0.5, 0.4, 0.2]])

    def both(x):
        return linearised(torch.vmap(lambda q: torch.stack([q.square().sum(), q[0] * q[1]])), x)

    with torch.no_grad():
        torch.testing.assert_close(torch.compile(both, backend="eager")(x), both(x))
