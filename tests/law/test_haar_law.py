"""Orthogonal: without a potential the weight is Haar distributed, with a linear one it is its exponential tilt.

Let r × s be the tall orientation. Entries of a Haar matrix of O(r) have (Weingarten calculus)

    E Q₁₁² = 1/r,   E Q₁₁⁴ = 3/(r(r+2)),   E Q₁₁²Q₁₂² = 1/(r(r+2)),
    E Q₁₁²Q₂₂² = (r+1)/((r−1)r(r+2)),   E Q₁₁Q₁₂Q₂₁Q₂₂ = −1/((r−1)r(r+2)),

and r × s weights are its first columns. Square weights keep their determinant, so they are Haar on one half
of O(r) only; for r = 3 the moments of order two and four are the same there, and the order-three one
E Q₁₁Q₂₂Q₃₃ = det/6 tells the halves apart. Projection, RATTLE and noise are invariant under rotations from
the left and from the right, so Haar holds at any step size.

With U = tr(CᵀQ) the density is exp(−tr(CᵀQ)/τ) with respect to Haar. Expectations come from a quadrature
rule on SO(3) in Euler angles, exact for polynomials of degree below its size, so their error is nil; an
asymmetric C lets wrong signs and transpositions show. Chains start in that law and run for several
relaxation times: a sampler with another law would leave it.

Steps must be small enough that √(2τh)R or hP never leaves the reach of the projection, in any of 1000
chains: that, not the bias, limits h without a potential.
"""

from functools import cache

import numpy as np
import pytest
import torch

from holonom.constraints import Orthogonal
from tests.law.chains import assert_agree, average

CHAINS, TEMPERATURE = 1000, 2.0
SHAPES = {"tall": (3, 2), "wide": (2, 3), "square": (3, 3)}
SLOPE = torch.tensor([[2.0, -1.2, 0.4], [0.8, 1.6, -2.4], [-0.4, 1.2, 0.8]], dtype=torch.float64)

# word: (h, burn-in steps, steps) without a potential, the same with one, and the bias allowed then
WORDS = {
    "BAOAB": ((0.15, 40, 50), (0.1, 20, 90), 0.005),
    "OBA": ((0.08, 50, 60), (0.04, 50, 200), 0.02),
    "ABO": (None, (0.04, 50, 200), 0.02),
    "L": ((0.006, 250, 150), (0.005, 80, 450), 0.01),
}
CASES = [("BAOAB", name) for name in SHAPES]  # tests/unit/test_orthogonal.py has every word on every shape


@cache
def rotations(size=24):
    """Nodes Q = R_z(α)R_y(β)R_z(γ) and weights of a quadrature rule for Haar measure, dα sinβ dβ dγ/8π²."""
    angle = 2 * np.pi * np.arange(size) / size
    height, weight = np.polynomial.legendre.leggauss(size)
    a, b, c = (torch.tensor(x) for x in np.meshgrid(angle, np.arccos(height), angle, indexing="ij"))
    weights = torch.tensor(np.broadcast_to(weight[:, None], (size, size, size)) / (2 * size**2)).flatten()
    return (_turn(a, 0, 1) @ _turn(b, 2, 0) @ _turn(c, 0, 1)).reshape(-1, 3, 3), weights


def _turn(angle, i, j):
    q = torch.eye(3, dtype=torch.float64).repeat(*angle.shape, 1, 1)
    q[..., i, i] = q[..., j, j] = torch.cos(angle)
    q[..., j, i] = torch.sin(angle)
    q[..., i, j] = -q[..., j, i]
    return q


def run(word, start, gradient, observe, h, burn, steps):
    averages, _ = average(
        start, gradient, observe, steps=steps, burn=burn, every=4,
        lr=h, scheme=word, temperature=TEMPERATURE, constraint=Orthogonal(view="batch"), seed=7,
    )  # fmt: skip
    return averages


def moments(q, state=None):
    q = q if q.shape[-2] >= q.shape[-1] else q.mT
    a, b, c, d = q[:, 0, 0], q[:, 0, 1], q[:, 1, 0], q[:, 1, 1]
    columns = [a * a, d * d, a**4, (a * b) ** 2, (a * c) ** 2, (a * d) ** 2, a * b * c * d]
    if q.shape[-1] == 3:
        columns.append(a * d * q[:, 2, 2] * torch.linalg.det(q).round())
    return torch.stack(columns, 1)


def haar_moments(shape):
    r = max(shape)
    both = 1 / (r * (r + 2))
    expected = [1 / r, 1 / r, 3 * both, both, both, (r + 1) / (r - 1) * both, -both / (r - 1)]
    return torch.tensor(expected + ([1 / 6] if shape == (3, 3) else []), dtype=torch.float64)


def test_the_quadrature_has_the_moments_of_haar():
    """Formulas and nodes, two roads to the same numbers, vouch for each other."""
    nodes, weights = rotations()
    torch.testing.assert_close(weights @ moments(nodes), haar_moments((3, 3)), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("word", "name"), [*CASES, ("OBA", "tall"), ("L", "square")])
def test_without_a_potential_weights_are_haar(word, name):
    shape = SHAPES[name]
    start = torch.eye(*shape, dtype=torch.float64).repeat(CHAINS, 1, 1)
    if shape == (3, 3):
        start[::2, 0, 0] = -1  # both halves of O(3)
    averages = run(word, start, torch.zeros_like, moments, *WORDS[word][0])
    assert_agree(averages, haar_moments(shape), resolution=0.03)


@pytest.mark.parametrize(("word", "name"), [*CASES, ("OBA", "wide"), ("ABO", "tall"), ("L", "tall")])
def test_with_a_linear_potential_weights_are_tilted_haar(word, name):
    rows, columns = SHAPES[name]
    slope = SLOPE[:rows, :columns]
    nodes, weights = rotations()
    nodes = nodes[:, :rows, :columns]  # first rows of a rotation are as good as first columns
    weights = weights * torch.exp(-(nodes * slope).sum((1, 2)) / TEMPERATURE)
    weights = weights / weights.sum()

    def observe(q, state=None):
        energy = (q * slope).sum((1, 2)) / slope.norm()
        return torch.cat([q.flatten(1), energy[:, None], energy[:, None] ** 2], 1)

    draw = torch.multinomial(weights, CHAINS, replacement=True, generator=torch.Generator().manual_seed(1))
    averages = run(word, nodes[draw], slope.expand_as, observe, *WORDS[word][1])
    assert_agree(averages, weights @ observe(nodes), resolution=0.06, bias=WORDS[word][2])
