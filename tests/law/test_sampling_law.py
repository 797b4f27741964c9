"""Sampling: the draws of every kernel have the posterior's law.

A linear regression with a Gaussian prior has a Gaussian posterior: whitened by it, draws have mean 0 and covariance I.
A logistic regression and the local laws are compared with quadrature, a unit vector under a linear loss with von
Mises–Fisher. Averages of one chain each are compared as in ``tests/law/chains.py``.
"""

import math

import pytest
import torch
from torch import nn

from holonom.constraints import LevelSet, Orthogonal, Sphere
from holonom.sampling import BAOAB, HMC, Cyclical, learning_coefficient, sample
from tests.law.chains import assert_agree

CHAINS, NOISE = 300, 0.5


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def squared_error(output, target):
    return (output - target).square().mean() / (2 * NOISE**2)


def regression():
    """Data, the prior, and the exact mean and covariance of (weight, bias)."""
    x = normals(20, 2) @ torch.tensor([[1.0, 0.8], [0.0, 0.6]], dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-0.5]], dtype=torch.float64) + 0.3 + NOISE * normals(20, 1, seed=1)
    design = torch.cat([x, torch.ones(20, 1, dtype=torch.float64)], 1)
    precision = torch.tensor([1 / 1.5**2, 1 / 1.5**2, 1 / 0.7**2], dtype=torch.float64)
    covariance = (design.T @ design / NOISE**2 + torch.diag(precision)).inverse()
    prior_mean = torch.tensor([0.0, 0.0, 0.4], dtype=torch.float64)
    mean = covariance @ ((design.T @ y)[:, 0] / NOISE**2 + precision * prior_mean)
    return (x, y), {"weight": 1.5, "bias": (0.4, 0.7)}, mean, covariance


def whitened_moments(draws, mean, covariance):
    """(chains, observables): the mean and the second moments of every chain, which should be 0 and I."""
    z = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (draws - mean).mT, upper=False).mT
    second = (z[..., :, None] * z[..., None, :]).mean(1)
    return torch.cat([z.mean(1), second.flatten(1)], 1)


def weights(posterior):
    return torch.cat([x.flatten(2) for x in posterior.draws.values()], 2)


@pytest.mark.parametrize(
    ("kernel", "steps", "resolution"),
    [
        ("baoab", 300, 0.16),
        ("sgld", 400, 0.16),
        ("adl", 300, 0.16),
        (Cyclical(cycles=3), 600, 0.3),
        ("mala", 300, 0.16),
        (HMC(leapfrogs=4), 120, 0.16),
    ],
    ids=str,
)
def test_linear_regression_has_its_exact_mean_and_covariance(kernel, steps, resolution):
    data, prior, mean, covariance = regression()
    posterior = sample(
        nn.Linear(2, 1).double(), squared_error, data, prior=prior, kernel=kernel, steps=steps, chains=CHAINS, seed=1,
        progress=False,
    )  # fmt: skip
    expected = torch.cat([torch.zeros(3), torch.eye(3).flatten()])
    assert_agree(whitened_moments(weights(posterior), mean, covariance), expected, resolution=resolution)


@pytest.mark.parametrize(("kernel", "steps", "bias"), [("baoab", 300, 0.02), (HMC(leapfrogs=4), 100, 0.0)], ids=str)
def test_logistic_regression_agrees_with_quadrature(kernel, steps, bias):
    """Few data, so that the posterior is skewed: its mean is off the maximum by a third of a standard deviation."""
    x = normals(8, 2)
    y = (x[:, :1] - 0.5 * x[:, 1:] + 0.3 * normals(8, 1, seed=1) > 0).double()
    line = torch.linspace(-12, 12, 801, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    nll = nn.functional.binary_cross_entropy_with_logits(grid @ x.T, y[:, 0].expand(len(grid), 8), reduction="none")
    mass = torch.softmax(-nll.sum(1) - grid.square().sum(1) / (2 * 3.0**2), 0)
    mean = mass @ grid
    covariance = (grid - mean).T @ ((grid - mean) * mass[:, None])
    posterior = sample(
        nn.Linear(2, 1, bias=False).double(), nn.BCEWithLogitsLoss(), (x, y), prior=3.0, kernel=kernel, steps=steps,
        chains=CHAINS, seed=2, progress=False,
    )  # fmt: skip
    expected = torch.cat([torch.zeros(2), torch.eye(2).flatten()])
    assert_agree(whitened_moments(weights(posterior), mean, covariance), expected, resolution=0.2, bias=bias)


def unit(w):
    return w.square().sum().reshape(1) - 1


@pytest.mark.parametrize("space", [Sphere(1.0, slack=False), LevelSet(unit), Orthogonal()], ids=repr)
def test_a_unit_vector_under_a_linear_loss_is_von_mises_fisher(space):
    """Density ∝ exp(−κ b·w) on the sphere: E w = −(coth κ − 1/κ) b and E (b·w)² = 1 − 2A/κ, by RATTLE.

    The drift of Sphere is exact; those of LevelSet and Orthogonal are projections, and run backwards.
    """
    kappa = 2.5
    axis = torch.tensor([0.6, -0.8, 0.0], dtype=torch.float64)
    data = axis.expand(10, 3), torch.zeros(10, 1, dtype=torch.float64)
    posterior = sample(
        nn.Linear(3, 1, bias=False).double(), lambda output, _: output.mean(), data, num_data=kappa, lr=0.3,
        kernel=HMC(leapfrogs=4), steps=60, burn_in=15, chains=CHAINS, seed=3, progress=False,
        constraints={"weight": space},
    )  # fmt: skip
    w = weights(posterior)
    torch.testing.assert_close(w.norm(dim=2), torch.ones_like(w[..., 0]), rtol=0, atol=1e-9)
    length = 1 / math.tanh(kappa) - 1 / kappa
    second = 1 - 2 * length / kappa
    observed = torch.cat([w.mean(1), (w @ axis).square().mean(1)[:, None], w[..., 2].square().mean(1)[:, None]], 1)
    expected = torch.cat([-length * axis, torch.tensor([second, (1 - second) / 2])])
    assert 0.5 < posterior.acceptance < 1
    assert_agree(observed, expected, resolution=0.06)


class Point(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 1.0], dtype=torch.float64))

    def forward(self, x):
        return self.w.expand(len(x), 2)


def wave(w):
    return w[1] - torch.cos(3 * w[0])


def test_steps_that_find_another_branch_of_a_curve_keep_its_law():
    """Draws of N(0, I) on y = cos 3x keep their law under steps that are much too long.

    Half of the proposals are rejected: drifts that find no root, and those that do not return. Without the latter test
    E x² falls to 0.78.
    """
    chains = 1600
    x = torch.linspace(-6, 6, 200001, dtype=torch.float64)
    curve = torch.stack([x, torch.cos(3 * x)], 1)
    mass = torch.softmax((1 + 9 * torch.sin(3 * x) ** 2).log() / 2 - curve.square().sum(1) / 2, 0)
    start = torch.multinomial(mass, chains, replacement=True, generator=torch.Generator().manual_seed(0))
    data = torch.zeros(4, 1, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.float64)
    posterior = sample(
        Point(), lambda output, _: 0 * output.sum(), data, num_data=1.0, lr=1.0, kernel=HMC(leapfrogs=2), steps=12,
        burn_in=0, thin=1, chains=chains, seed=1, init=[{"w": point} for point in curve[start]], progress=False,
        constraints={"w": LevelSet(wave)},
    )  # fmt: skip
    assert 0.4 < posterior.acceptance < 0.7
    w = weights(posterior)[:, -6:]
    torch.testing.assert_close(w[..., 1], torch.cos(3 * w[..., 0]), rtol=0, atol=1e-9)
    expected = torch.cat([mass @ curve, mass @ curve.square()])
    assert_agree(torch.cat([w, w.square()], 2).mean(1), expected, resolution=0.2)


class Product(nn.Module):
    """w₁w₂x: with targets 0 the loss is a normal crossing."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        return self.w.prod() * x[:, 0]


class Regular(Product):
    def forward(self, x):
        return x @ self.w


@pytest.mark.parametrize("model", [Regular(), Product()], ids=lambda model: type(model).__name__)
@pytest.mark.parametrize(("kernel", "steps", "bias"), [(BAOAB(), 250, 0.01), (HMC(leapfrogs=4), 100, 0.0)], ids=str)
def test_the_learning_coefficient_agrees_with_quadrature(model, kernel, steps, bias):
    """At the same n, β and restoring term; here 0.97 for the regular model (1 without the term) and 0.30 for w₁²w₂²."""
    n, restoring = 50, 1.0
    x, y = normals(n, 2), torch.zeros(n, dtype=torch.float64)
    beta = 1 / math.log(n)
    line = torch.linspace(-6, 6, 601, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    if type(model) is Regular:
        losses = torch.einsum("gi,ij,gj->g", grid, x.T @ x / n, grid)
    else:
        x = torch.ones(n, 2, dtype=torch.float64)
        losses = grid.prod(1).square()
    mass = torch.softmax(-n * beta * losses - restoring * grid.square().sum(1) / 2, 0)
    found = learning_coefficient(
        model, nn.MSELoss(), (x, y), restoring=restoring, kernel=kernel, steps=steps, chains=CHAINS, seed=4,
        progress=False,
    )  # fmt: skip
    assert found.error == pytest.approx(float(found.per_chain.std() / CHAINS**0.5))
    assert_agree(found.per_chain[:, None], [float(n * beta * (mass @ losses))], resolution=0.08, bias=bias)
