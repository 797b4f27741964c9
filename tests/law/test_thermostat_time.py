"""The thermostat that nobody tuned holds the temperature of the positions, whatever N, τ, the start and the noise.

Oscillators with hω from 0.09 to 0.6, two replicas at two temperatures with a thermostat each; q² is an average over
entries and steps. Noise of gradients σ heats like h²σ²/(2τ) per degree of freedom and step.
With the papers' ε = 0.1 and σ_A = 0.01 these runs end between 0.99 and 10²⁶ times the variance.
"""

import pytest
import torch

from holonom import Langevin

H = 0.3
TAUS = torch.tensor([1e-4, 1.0], dtype=torch.float64)


def variance(entries, noise=0.0, start=0.0, steps=400, burn=400, word="BACDEDCAB", tau=TAUS, **options):
    """⟨ω²q²⟩/τ of every replica, and h·ξ at the end."""
    stiffness = torch.linspace(0.3, 2, entries, dtype=torch.float64) ** 2
    spread = (tau[:, None] / stiffness).sqrt()
    q = torch.nn.Parameter(start * spread)
    seeds = torch.arange(len(tau))
    optimizer = Langevin([q], H, scheme=word, temperature=tau, seed=seeds, **options)
    generator = torch.Generator().manual_seed(5)
    total = torch.zeros(len(tau), dtype=torch.float64)
    for n in range(burn + steps):
        kick = torch.randn(q.shape, generator=generator, dtype=torch.float64)
        q.grad = stiffness * q.detach() + (2 * tau * noise)[:, None].sqrt() / H * kick
        optimizer.step()
        if n >= burn:
            total += (stiffness * q.detach().square()).mean(1) / tau / steps
    return total, H * optimizer.state[q]["thermostat"]


@pytest.mark.parametrize(("word", "noise"), [("BACDEDCAB", 0.0), ("BAFEFAB", 0.0), ("BACDEDCAB", 0.1)])
def test_many_parameters(word, noise):
    found, friction = variance(10_000, noise, word=word)
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=0.03)
    torch.testing.assert_close(friction, torch.full_like(found, 1 / 20 + noise), rtol=0, atol=0.02)


def test_few_parameters():
    """Ten degrees of freedom: ξ fluctuates by a third of its mean. Forty chains a temperature make up for it."""
    noise = torch.tensor([0.0, 0.1], dtype=torch.float64).repeat(80)
    found, _ = variance(10, noise, tau=TAUS.repeat_interleave(80), steps=1000)
    found = found.reshape(2, 40, 2).mean(1)
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=0.04)


def test_a_start_far_from_equilibrium_neither_freezes_nor_lasts():
    """From a thousand times the spread T/τ is 10⁶; without a bound ξ stops everything for 10⁵ steps."""
    found, friction = variance(1000, start=1000.0, burn=1500, steps=300)
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=0.05)
    assert (friction.abs() < 0.2).all()


def test_a_temperature_that_changes_is_followed():
    """τ falls to a hundredth: ε and σ_A follow without anything being given anew."""
    q = torch.nn.Parameter(torch.zeros(2000, dtype=torch.float64))
    optimizer = Langevin([q], H, scheme="BACDEDCAB", temperature=1.0, seed=3)
    totals = []
    for tau in (1.0, 0.01):
        optimizer.param_groups[0]["temperature"] = tau
        total = 0.0
        for n in range(800):
            q.grad = q.detach().clone()
            optimizer.step()
            total += float(q.detach().square().mean()) / tau / 300 * (n >= 500)
        totals.append(total)
    assert totals == pytest.approx([1, 1], abs=0.03)
