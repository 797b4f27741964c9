"""Orthogonal: without a potential the weight is Haar distributed, with a linear one it is its exponential tilt.

Let r × s be the tall orientation. Entries of a Haar matrix of O(r) have (Weingarten calculus)

    E Q₁₁² = 1/r,   E Q₁₁⁴ = 3/(r(r+2)),   E Q₁₁²Q₁₂² = 1/(r(r+2)),
    E Q₁₁²Q₂₂² = (r+1)/((r−1)r(r+2)),   E Q₁₁Q₁₂Q₂₁Q₂₂ = −1/((r−1)r(r+2)),

and r × s weights are its first columns. Square weights keep their determinant, so they are Haar on one half
of O(r) only; for r = 3 the moments of order two and four are the same there, and the order-three one
E Q₁₁Q₂₂Q₃₃ = det/6 tells the halves apart. Projection, RATTLE and noise are invariant under rotations from
the left and from the right, so Haar holds at any step size.

With U = tr(CᵀQ) the law is exp(−tr(CᵀQ)/τ) times Haar. Expectations come from Haar samples made by QR and
weighted, an independent road; an asymmetric C lets wrong signs and transpositions show. The samples' own
standard error is added to the allowance.
"""

import pytest
import torch

from holonom.constraints import Orthogonal
from tests.law.chains import SIGMAS, assert_agree, average

SHAPES = {"tall": (3, 2), "wide": (2, 3), "square": (3, 3)}
TEMPERATURE = 0.5

# word: (h without potential, h with potential, allowed bias with potential)
WORDS = {
    "BAOAB": (0.3, 0.1, 0.003),
    "BAAOAAB": (0.5, 0.1, 0.003),
    "OBA": (0.3, 0.02, 0.01),
    "ABO": (0.3, 0.02, 0.01),
    "L": (0.03, 0.01, 0.01),
}


def haar(count, rows, columns, seed):
    """Haar matrices: QR of Gaussians with the signs of R's diagonal taken out."""
    generator = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(count, rows, rows, dtype=torch.float64, generator=generator))
    return (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :])[:, :, :columns]


def tall(q):
    return q if q.shape[-2] >= q.shape[-1] else q.mT


def run(word, shape, h, gradient, observe, chains, burn, steps, every, start=None):
    if start is None:
        start = torch.eye(*shape, dtype=torch.float64).repeat(chains, 1, 1)
        if shape[0] == shape[1]:
            start[::2, 0, 0] = -1  # both halves of O(r)
    averages, _ = average(
        start, gradient, observe, steps=steps, burn=burn, every=every,
        lr=h, scheme=word, temperature=TEMPERATURE, constraint=Orthogonal(view="batch"), seed=7,
    )  # fmt: skip
    return averages


def haar_moments(q, state=None):
    q = tall(q)
    a, b, c, d = q[:, 0, 0], q[:, 0, 1], q[:, 1, 0], q[:, 1, 1]
    columns = [a * a, d * d, a**4, (a * b) ** 2, (a * c) ** 2, (a * d) ** 2, a * b * c * d]
    if q.shape[-1] == 3:
        columns.append(a * d * q[:, 2, 2] * torch.linalg.det(q).round())
    return torch.stack(columns, 1)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("word", WORDS)
def test_without_a_potential_weights_are_haar(word, shape):
    h, r = WORDS[word][0], 3
    both = 1 / (r * (r + 2))
    expected = [1 / r, 1 / r, 3 * both, both, both, (r + 1) / (r - 1) * both, -both / (r - 1)]
    if shape == (3, 3):
        expected.append(1 / 6)
    averages = run(word, shape, h, torch.zeros_like, haar_moments, 2000, burn=60, steps=300, every=5)
    assert_agree(averages, expected, resolution=0.02)


def test_the_reference_samples_are_haar():
    """The same moments of the QR samples: formulas and samples vouch for each other."""
    both = 1 / 15
    expected = [1 / 3, 1 / 3, 3 * both, both, both, 2 * both, -both / 2, 1 / 6]
    assert_agree(haar_moments(haar(100_000, 3, 3, seed=1)), expected, resolution=0.01)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("word", WORDS)
def test_with_a_linear_potential_weights_are_tilted_haar(word, shape):
    slope = torch.tensor([[0.5, -0.3, 0.1], [0.2, 0.4, -0.6], [-0.1, 0.3, 0.2]], dtype=torch.float64)
    slope = slope[: shape[0], : shape[1]]

    def observe(q, state=None):
        energy = (q * slope).sum((1, 2))
        return torch.cat([q.flatten(1), energy[:, None] ** 2], 1)

    reference = haar(400_000, max(shape), min(shape), seed=2)
    if shape[0] == shape[1]:
        reference[:, :, 0] *= torch.linalg.det(reference).round()[:, None]  # the half of O(r) with det = 1
    reference = reference if shape[0] >= shape[1] else reference.mT
    weight = torch.exp(-(reference * slope).sum((1, 2)) / TEMPERATURE)[:, None]
    values = observe(reference)
    expected = (weight * values).sum(0) / weight.sum()
    spread = (weight * (values - expected)).square().sum(0).sqrt() / weight.sum()  # of a ratio of sums

    _, h, bias = WORDS[word]
    start = torch.eye(*shape, dtype=torch.float64).repeat(2000, 1, 1)
    every = max(1, int(0.3 / h))
    averages = run(
        word, shape, h, slope.expand_as, observe, 2000, burn=int(8 / h), steps=int(20 / h), every=every, start=start
    )
    assert_agree(averages, expected, resolution=0.02, bias=bias + SIGMAS * float(spread.max()))
