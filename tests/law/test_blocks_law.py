"""Blocks of spheres are von Mises–Fisher, scaled orthogonal matrices are c times (tilted) Haar, momenta are at τ.

The laws are those of test_sphere_law and test_haar_law. A block of n entries on a sphere of radius r with U = b·x has
κ = ‖b‖r/τ in n dimensions, one more with a slack variable. W = cQ with U = tr(CᵀW)/c is c times the law of Q with
tr(CᵀQ); with lr·c and γ/c its steps are those of Q.
"""

import pytest
import torch
from scipy.special import ive

from holonom import Langevin
from holonom.constraints import Orthogonal, Sphere, View
from tests.law.chains import assert_agree, average
from tests.law.test_haar_law import CHAINS as MATRICES
from tests.law.test_haar_law import SLOPE, haar_moments, moments, rotations
from tests.law.test_haar_law import TEMPERATURE as OF_MATRICES

CHAINS, RADIUS, TEMPERATURE = 3_000, 0.8, 0.5
BLOCKS = {  # how chains lie in one tensor: shape, blocks (chains, n), options, radius
    "column": ((3, CHAINS), lambda q: q.mT, {"per": "column"}, RADIUS),
    "matrix": ((CHAINS, 2, 2), lambda q: q.flatten(1), {"per": "matrix", "slack": True}, RADIUS),
    "expert, initial": ((CHAINS, 2, 2), lambda q: q.flatten(1), {"per": "matrix", "factor": 2.0}, "initial"),
    "head": (
        (4, CHAINS), lambda q: q.mT.reshape(CHAINS // 2, 8),
        {"per": "head", "view": View(output=1, blocks=CHAINS // 2), "slack": False}, RADIUS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BLOCKS)
def test_blocks_are_von_mises_fisher(case):
    shape, read, options, radius = BLOCKS[case]
    space = Sphere(radius, **{"slack": False, **options})
    start = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    Sphere(RADIUS * (0.5 if radius == "initial" else 0.9), False, per=space.per, view=space.block_view).land_(start, "")
    if not space.has_slack and radius != "initial":
        space.land_(start, "")
    blocks = read(torch.arange(start.numel()).reshape(shape))
    n = blocks.shape[1]
    force = torch.tensor([0.9, -0.6, 0.2, 0.5, 0.0, -0.1, 0.3, 0.7][:n], dtype=torch.float64)
    slope = torch.empty(start.numel(), dtype=torch.float64)
    slope[blocks] = force
    slope = slope.reshape(shape)

    d = n + space.has_slack
    kappa = float(force.norm()) * RADIUS / TEMPERATURE
    mean = float(ive(d / 2, kappa) / ive(d / 2 - 1, kappa))
    along = 1 - (d - 1) * mean / kappa
    axis = force / force.norm()

    def observe(q, state):
        x = read(q) / RADIUS
        energy = (x @ axis)[:, None]
        return torch.cat([x, energy.square()], 1)

    averages, end = average(
        start, lambda q: slope, observe, steps=100, burn=70, every=2,
        lr=0.15, scheme="BAOAB", temperature=TEMPERATURE, constraint=space, seed=5,
    )  # fmt: skip
    assert_agree(averages, [*(-mean * axis), along], resolution=0.02, bias=0.002)
    if not space.has_slack:
        torch.testing.assert_close(read(end).norm(dim=1), torch.full((len(blocks),), RADIUS, dtype=torch.float64))


@pytest.mark.parametrize("scale", [2.5, "initial"])
@pytest.mark.parametrize("shape", [(3, 2), (3, 3)], ids=str)
def test_orthogonal_matrices_are_tilted_haar_times_their_scale(shape, scale):
    c = 2.5
    nodes, weights = rotations()
    slope = SLOPE[: shape[0], : shape[1]]
    nodes = nodes[:, :, : shape[1]]
    weights = weights * torch.exp(-(nodes * slope).sum((1, 2)) / OF_MATRICES)
    weights = weights / weights.sum()
    draw = torch.multinomial(weights, MATRICES, replacement=True, generator=torch.Generator().manual_seed(1))

    def observe(q, state=None):
        energy = (q * slope).sum((1, 2)) / slope.norm()
        return torch.cat([q.flatten(1), energy[:, None] ** 2], 1)

    averages, _ = average(
        c * nodes[draw], lambda w: (slope / c).expand_as(w), lambda w, state: observe(w / c), steps=90, burn=20,
        every=4, lr=0.1 * c, friction=1 / c, scheme="BAOAB", temperature=OF_MATRICES,
        constraint=Orthogonal("batch", scale=scale), seed=7,
    )  # fmt: skip
    assert_agree(averages, weights @ observe(nodes), resolution=0.06, bias=0.005)


def test_without_a_potential_matrices_are_haar_times_their_scale():
    c = 0.4
    start = c * torch.eye(3, 2, dtype=torch.float64).repeat(MATRICES, 1, 1)
    averages, _ = average(
        start, torch.zeros_like, lambda w, state: moments(w / c), steps=50, burn=40, every=4, lr=0.15 * c,
        friction=1 / c, scheme="BAOAB", temperature=OF_MATRICES, constraint=Orthogonal("batch", scale=c), seed=7,
    )  # fmt: skip
    assert_agree(averages, haar_moments((3, 2)), resolution=0.03)


@pytest.mark.parametrize(
    "space",
    [Sphere(0.8, False, per="matrix"), Sphere("initial", per="column"), Sphere(3.0, per="matrix"),
     Orthogonal("batch", scale=1.7), Orthogonal(scale="initial", per="matrix")],
    ids=repr,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_momenta_are_at_the_temperature(space):
    """pᵀp/N averages to τ, N being the degrees of freedom: one too many or too few a block would show."""
    q = torch.nn.Parameter(torch.randn(800, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    opt = Langevin([q], 0.2, friction=5.0, temperature=0.7, constraint=space, seed=1)
    found = []
    for step in range(60):
        q.grad = torch.zeros_like(q)
        opt.step()
        if step >= 20:
            found.append(opt.temperatures()[0])
    freedom = space.with_view(None).degrees_of_freedom(q)
    error = 5 * (2 / (freedom * len(found))) ** 0.5  # draws are nearly independent: γh = 1
    assert abs(sum(found) / len(found) / 0.7 - 1) < 1.5 * error < 0.04
