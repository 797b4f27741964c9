"""Ten thousand noisy single-precision steps leave constraint and cotangency at rounding.

An error that a step adds and no later step removes grows: after n steps like n roundings (6e-4 for n = 1e4)
or, at random, like √n; the largest of some hundred blocks is then at three times that (2e-5). A drift in the wrong
direction grows at once. So the bound of 1e-5 says that errors are removed as fast as they come. It is checked along
the way as well.

Stages are integrated straight on the optimizer's state: what is left out of step(), drawing the noise by key and
checking gradients, is most of its time for tensors this small and touches no geometry. The normals come
from a pool of odd size, so that they never fall into step with anything. ABO runs as kick, bath, drift: what
the bath or the drift leaves off the cotangent space is still there at the end of the step, to be seen.
"""

import pytest
import torch

from holonom import Langevin
from holonom._step.integrate import integrate
from holonom._step.letters import Numbers, make_ready
from holonom._step.run import POLISH_EVERY
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from holonom.scheme import compile_word
from tests.law.mechanics import ball, ellipsoid

TEMPERATURE, BOUND = 0.1, 1e-5


@torch.no_grad()
def simulate(space, shape, word, h, steps):
    """Largest residual and cotangency seen every hundredth part of the run."""
    generator = torch.Generator().manual_seed(13)
    start = 0.3 * torch.randn(shape, generator=generator)
    space.land_(space.view(start), "start")
    q = torch.nn.Parameter(start)
    q.grad = torch.randn(shape, generator=generator)
    optimizer = Langevin([q], h, scheme=word, temperature=TEMPERATURE, constraint=space)
    [[bucket]] = optimizer._buckets()
    [phase], [force] = bucket.phases(), bucket.forces([q.grad], 1.0, 0.0)

    numbers = Numbers.of(optimizer.param_groups[0], h, owed=h)
    ops = make_ready(compile_word(word).program, 0, numbers, None, space.traits.geodesic)
    moved = [phase.q, phase.slack] if word == "L" else [phase.p, phase.slack_p]
    shapes = [x.shape for x in moved if x is not None]
    pool = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(997)]

    residual = cotangency = 0.0
    for n in range(steps):
        noise = [x.clone() for x in pool[n % 997]]  # letters project their noise in place
        integrate(ops, space, phase, force, lambda draw, noise=noise: noise, polish=n % POLISH_EVERY == 0)
        if n % (steps // 100) == 0 or n == steps - 1:
            residual = max(residual, optimizer.residuals()[0])
            cotangency = max(cotangency, optimizer.cotangencies()[0])
    return residual, cotangency


@pytest.mark.parametrize(
    ("space", "shape", "word", "h"),
    [
        (Circle(0.7), (1000,), "ABO", 0.1),
        (Sphere(0.9, slack=False), (300, 3), "L", 0.01),
        (Sphere(0.9), (300, 3), "ABO", 0.1),
        (Orthogonal("batch"), (200, 4, 2), "ABO", 0.1),
        (Orthogonal("batch"), (200, 3, 3), "L", 0.01),
    ],
    ids=lambda x: repr(x).replace(" ", ""),
)
def test_nothing_drifts_off_the_manifold(space, shape, word, h):
    residual, cotangency = simulate(space, shape, word, h, 10_000)
    assert residual <= BOUND
    assert cotangency <= BOUND


@pytest.mark.parametrize("steps", [200, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.parametrize(("g", "slack"), [(ellipsoid, False), (ball, True)])
def test_nothing_drifts_off_a_level_set(g, slack, steps):
    """Fewer steps by default: differentiating a user's function makes each twenty times as long.

    And fewer say as much: every drift ends with Newton's iteration on g itself, from wherever it starts, and
    every momentum is projected at the point reached. Nothing of a step's error is left to the next one.
    """
    residual, cotangency = simulate(LevelSet(g, slack=slack, batch_dims=1), (100, 3), "ABO", 0.1, steps)
    assert residual <= BOUND
    assert cotangency <= BOUND
