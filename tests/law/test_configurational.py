"""The configurational temperature: τ where positions are right, and what a word makes of it where they are not.

Weights of one tensor are independent oscillators or angles. The standard error of an average over N entries and n
steps, correlated over about c steps, is √(2c/(Nn)), here below 0.4 %.
"""

import math

import pytest
import torch

from holonom import Langevin
from holonom._step.integrate import Phase
from holonom.constraints import Circle, Free

TAU = 0.4


def record(word, gradient, start, lr, steps, burn, reference=0.0, **options):
    q = torch.nn.Parameter(start)
    optimizer = Langevin([q], lr, scheme=word, temperature=TAU, seed=11, **options)
    for n in range(burn + steps):
        if n == burn:
            optimizer.record_temperatures()
            if reference is not None:  # any constant will do; the weights now are correlated with those that follow
                optimizer.state[q]["reference"].fill_(reference)
        q.grad = gradient(q.detach())
        optimizer.step()
    return optimizer.temperatures("configurational")[0] / TAU, optimizer.temperatures()[0] / TAU


def oscillators(word, friction, lr, reference=0.0, steps=400):
    stiffness = 0.25
    start = math.sqrt(TAU / stiffness) * torch.randn(4000, generator=torch.Generator().manual_seed(2))
    return record(
        word, lambda q: stiffness * q, start, lr, steps, 100, reference=reference, friction=friction, fuse=False
    )


@pytest.mark.parametrize(
    ("word", "friction", "factor"),
    [("BAOAB", 1.0, 1.0), ("OBA", 1.0, (1 + math.exp(-0.2)) / 2), ("ABO", 1.0, (1 + math.exp(0.2)) / 2)],
)
def test_words_show_the_temperature_of_their_positions(word, friction, factor):
    """OBA and ABO are off by first order in γh while their momenta are at τ."""
    configurational, kinetic = oscillators(word, friction, lr=0.2)
    assert configurational == pytest.approx(factor, abs=0.02)
    assert kinetic == pytest.approx(1, abs=0.08)  # of one moment
    assert word == "BAOAB" or abs(configurational - 1) > 0.07


def test_the_weights_at_the_beginning_are_a_reference():
    """Too low by the correlation time over the length of the run: Σ_t ρ(t) = γ/(ω²h) = 20 steps of 800."""
    configurational, _ = oscillators("BAOAB", 1.0, lr=0.2, reference=None, steps=800)
    assert configurational == pytest.approx(1 - 20 / 800, abs=0.02)


@pytest.mark.parametrize("reference", [0.0, 0.3])
def test_angles_of_von_mises(reference):
    """U = cθ, φ − π/2 of von Mises' law."""
    start = torch.empty(4000).uniform_(-0.9, 0.9, generator=torch.Generator().manual_seed(2))
    configurational, kinetic = record(
        "BAOAB", torch.ones_like, start, 0.2, 400, 100, reference=reference, constraint=Circle(1.0)
    )
    assert configurational == pytest.approx(1, abs=0.02)
    assert kinetic == pytest.approx(1, abs=0.08)


@pytest.mark.parametrize("start", [-0.4, 0.0, 0.6])
@pytest.mark.parametrize("radius", [0.7, torch.tensor(0.7, dtype=torch.float64)])
def test_the_identity_on_circles_is_exact(start, radius):
    """By quadrature, which is exact for periodic functions, for a potential without symmetries."""
    angles = torch.arange(400, dtype=torch.float64) * (2 * math.pi / 400)
    theta = 0.7 * angles.sin()
    potential, force = theta - 2 * theta**2 + (3 * theta).sin(), 1 - 4 * theta + 3 * (3 * theta).cos()
    weights = torch.exp(-potential / TAU)
    space, reference = Circle(radius), torch.tensor([start], dtype=torch.float64)
    pairs = [
        torch.stack(space.virial(Phase(q[None], radius=radius), f[None], reference))
        for q, f in zip(theta, force, strict=True)
    ]
    virial, divergence = (weights[:, None] * torch.stack(pairs)).sum(0)
    assert abs(divergence) > 1e-3 * weights.sum()
    assert virial / divergence == pytest.approx(TAU, rel=1e-10)


def test_the_virial_theorem_is_exact():
    q = torch.linspace(-8, 8, 801, dtype=torch.float64)
    weights = torch.exp(-(q**4 / 4 - q) / TAU)
    pairs = [
        torch.stack(Free().virial(Phase(x[None]), x[None] ** 3 - 1, torch.tensor([0.3], dtype=torch.float64)))
        for x in q
    ]
    virial, divergence = (weights[:, None] * torch.stack(pairs)).sum(0)
    assert virial / divergence == pytest.approx(TAU, rel=1e-10)
