"""Adaptive Langevin holds its temperature under gradient noise of unknown size; plain Langevin runs hot.

A gradient with noise σ_G R heats like a diffusion of strength hσ_G² per unit time. With a fixed friction the
temperature settles at τ + hσ_G²/(2γ) (BAOAB). The thermostat instead moves its friction ξ until pᵀp = Nτ, so
that 2ξτ balances whatever heats: mean ξ = (σ_A² + hσ_G²)/(2τ), and positions have the law exp(−U/τ).

N is the number of degrees of freedom *less the constraints*: had it been left at the number of entries,
a sphere's rows in three dimensions would be half as hot again. Temperatures are computed here from
the momenta and a count of degrees of freedom made by hand, in units of τ.

The thermostat weighs pᵀp where the letter E stands, in the middle of a step. At the end of the step, where
``synchronize()`` shows it, half of the friction has acted but only half of the last kick's noise has come in
(the two half kicks share one draw): pᵀp/N is τ − h²σ_G²/4 there, which is what is compared.

Noise of a gradient does not reach slack variables, and reaches a circle's weight as cos φ·σ_G: it heats such
layers unevenly, which one friction cannot undo. Equipartition on those is a law for the driving noise alone.

Statistics: blocks of one tensor are nearly independent chains; they share ξ only, which averages over all of
them. Each time average is compared at five standard errors of its spread over blocks, plus 1 % for O(h²).
"""

import math

import pytest
import torch
from scipy.special import ive

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal, Sphere
from holonom.constraints.base import MOMENTA
from tests.law.chains import assert_agree

H, TEMPERATURE, GRADIENT_NOISE = 0.05, 0.5, 4.0


def friction_for(noise, driving):
    return (driving**2 + H * noise**2) / (2 * TEMPERATURE)


def simulate(params, gradient, observe, word, freedom, noise, driving, burn=250, steps=600, **options):
    """Time averages of ``observe([(q, state), …])``, a list of tensors, and of the thermostat variable."""
    params = [torch.nn.Parameter(p) for p in params]
    optimizer = Langevin(
        params, H, scheme=word, temperature=TEMPERATURE, driving_noise=driving, coupling=1 / freedom, **options
    )
    generator = torch.Generator().manual_seed(21)
    totals, friction = 0.0, 0.0
    for n in range(burn + steps):
        for p in params:
            kick = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            p.grad = gradient(p.detach()) + noise * kick
        if n >= burn and n % 2 == 0:
            optimizer.synchronize()  # with the gradient the step itself is about to use
            values = observe([(p.detach(), optimizer.state[p]) for p in params])
            totals = [t + v for t, v in zip(totals, values)] if totals else values
            friction += float(optimizer.state[params[0]].get("thermostat", torch.zeros(())))
        optimizer.step()
    count = steps // 2
    return [t / count for t in totals], friction / count


def kinetic(state, freedom):
    """Temperature of every block: pᵀp / degrees of freedom / τ, as a column."""
    p = next(state[name] for name in MOMENTA if name in state).flatten(1)
    if "slack_momentum" in state:
        p = torch.cat([p, state["slack_momentum"]], 1)
    return p.square().sum(1, keepdim=True) / (freedom * TEMPERATURE)


def kinetic_for(noise):
    return 1 - H**2 * noise**2 / (4 * TEMPERATURE)


def quadratic(word, noise, driving=0.2, **options):
    """Kinetic and configurational temperature of oscillators of many frequencies."""
    stiffness = torch.linspace(0.5, 2, 8000, dtype=torch.float64)[:, None]

    def observe(pairs):
        [(q, state)] = pairs
        return [torch.cat([kinetic(state, 1), stiffness * q.square() / TEMPERATURE], 1)]

    start = [torch.zeros(8000, 1, dtype=torch.float64)]
    [averages], friction = simulate(start, stiffness.mul, observe, word, 8000, noise, driving, **options)
    return averages, friction


@pytest.mark.parametrize(("word", "noise", "driving"), [("BACDEDCAB", 0.0, 0.8), ("BAFEFAB", 4.0, 0.2)])
def test_a_quadratic_keeps_its_temperature(word, noise, driving):
    averages, friction = quadratic(word, noise, driving)
    assert_agree(averages, [kinetic_for(noise), 1], resolution=0.03, bias=0.01)
    assert friction == pytest.approx(friction_for(noise, driving), rel=0.05)


def test_plain_langevin_runs_hot():
    """Not vaguely: with n = h²σ_G² a step, s = e^{−2γh}(s + n) + (1 − e^{−2γh})τ is pᵀp/N before the kicks.

    Half a kick later, where it is read, it is s + n/4; the drifts move by s and by s + n, so positions by the mean.
    """
    friction, kick = 1.0, (H * GRADIENT_NOISE) ** 2 / TEMPERATURE
    before = 1 + kick / math.expm1(2 * friction * H)
    assert before > 1.7
    averages, _ = quadratic("BAOAB", GRADIENT_NOISE, friction=friction)
    assert_agree(averages, [before + kick / 4, before + kick / 2], resolution=0.04, bias=0.01)


# name: (constraint, shapes of two layers, degrees of freedom of a block of each, gradient noise, driving noise)
MANIFOLDS = {
    "circle": (Circle(0.7), [(4000, 1), (2000, 2)], [1, 2], 0.0, 1.0),
    "sphere": (Sphere(0.8, slack=False), [(2000, 3), (1000, 5)], [2, 4], 4.0, 0.2),
    "sphere with slack": (Sphere(0.8), [(2000, 2), (1000, 4)], [2, 4], 0.0, 1.0),
    "orthogonal": (Orthogonal(view="batch"), [(1000, 3, 2), (1000, 2, 2)], [3, 1], 4.0, 0.2),
}


@pytest.mark.parametrize(
    ("name", "word"), [("sphere", "BAFEFAB"), *((name, "BACDEDCAB") for name in MANIFOLDS if name != "sphere")]
)
def test_layers_on_a_manifold_have_the_temperature_each(name, word):
    """One thermostat, two layers of different shape: equipartition gives both the same temperature."""
    space, shapes, freedoms, noise, driving = MANIFOLDS[name]
    start = [0.3 * torch.ones(shape, dtype=torch.float64) for shape in shapes]
    if name == "sphere":
        start = [0.8 * x / x.norm(dim=1, keepdim=True) for x in start]
    if name == "orthogonal":
        start = [torch.eye(*shape[1:], dtype=torch.float64).repeat(shape[0], 1, 1) for shape in shapes]
    total = sum(shape[0] * freedom for shape, freedom in zip(shapes, freedoms))

    def observe(pairs):
        return [kinetic(state, freedom) for (_, state), freedom in zip(pairs, freedoms)]

    layers, friction = simulate(
        start, torch.ones_like, observe, word, total, noise, driving, burn=300, steps=160, constraint=space
    )
    for layer in layers:
        assert_agree(layer, [kinetic_for(noise)], resolution=0.08, bias=0.01)
    assert friction == pytest.approx(friction_for(noise, driving), rel=0.05)


def test_rows_on_a_sphere_keep_their_law_under_gradient_noise():
    """The positions too: the mean of the von Mises–Fisher law is that of temperature τ, not of a heated one."""
    force = torch.tensor([0.9, -0.6, 0.2], dtype=torch.float64)
    axis = force / force.norm()
    start = torch.zeros(2000, 3, dtype=torch.float64)
    start[:, 0] = 0.8

    def observe(pairs):
        return [pairs[0][0] @ axis[:, None] / 0.8]

    space = Sphere(0.8, slack=False)
    [along], _ = simulate([start], force.expand_as, observe, "BACDEDCAB", 4000, 4.0, 0.2, steps=400, constraint=space)

    def mean(temperature):
        kappa = float(force.norm()) * 0.8 / temperature
        return -ive(1.5, kappa) / ive(0.5, kappa)

    assert mean(1.8 * TEMPERATURE) - mean(TEMPERATURE) > 0.1  # what a friction of one would have given
    assert_agree(along, [mean(TEMPERATURE)], resolution=0.03, bias=0.005)
