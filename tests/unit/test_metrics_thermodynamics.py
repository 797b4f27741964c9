"""Thermometers against distributions whose temperature is known."""

import math

import pytest
import torch
from torch import nn

from holonom import Langevin
from holonom.constraints import Circle, Sphere
from holonom.metrics import Thermometer, equipartition


def chain(parameters, gradients, steps, **options):
    """Run a quadratic ½ Σ k q² for every parameter and read thermometers on the way."""
    optimizer = Langevin(parameters, **options)
    thermometer = Thermometer(optimizer)
    for number in range(steps):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = gradients(p)
        if number >= 200:
            optimizer.synchronize()
            thermometer.read()
        optimizer.step()
    return optimizer, thermometer


@pytest.fixture
def bowl():
    return [("stiff", nn.Parameter(torch.zeros(500))), ("soft", nn.Parameter(torch.zeros(20, 25)))]


def test_both_temperatures_of_every_layer_are_the_set_one(bowl):
    stiffness = {500: 2.0, 20: 0.5}
    _, thermometer = chain(
        bowl, lambda p: stiffness[len(p)] * (p.detach() - 3.0), 1400, lr=0.3, temperature=0.7, friction=1.0
    )
    for row, name in zip(thermometer.table(), ("stiff", "soft"), strict=True):
        assert row.name == name
        assert row.target == pytest.approx(0.7)
        assert row.freedom == 500
        # 1200 readings of 500 modes with correlation times of some ten steps; BAOAB's ⟨p²⟩ is (1 − h²k/4)τ.
        assert row.kinetic == pytest.approx(0.7 * (1 - 0.09 * stiffness[500 if name == "stiff" else 20] / 4), rel=0.02)
        assert row.configurational == pytest.approx(0.7, rel=0.03)
    assert "stiff" in str(thermometer)


def test_weight_decay_is_part_of_the_force(bowl):
    _, thermometer = chain(
        bowl, lambda p: torch.zeros_like(p), 1000, lr=0.3, temperature=0.7, weight_decay=1.0, friction=2.0
    )
    for row in thermometer.table():
        assert row.configurational == pytest.approx(0.7, rel=0.05)


def test_the_covariance_by_hand():
    p = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = Langevin([p], 0.1, scheme="L", temperature=0.5)
    thermometer = Thermometer(optimizer)
    q = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    g = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for i in range(5):
        with torch.no_grad():
            p.copy_(q[i])
        p.grad = g[i].clone()
        thermometer.read()
    (row,) = thermometer.table()
    assert row.configurational == pytest.approx(float(((q - q.mean(0)) * (g - g.mean(0))).mean()))
    assert math.isnan(row.kinetic)  # an overdamped word has no momenta
    assert torch.equal(p.grad, g[4])


def test_constraints_count_their_freedom():
    circle, sphere = nn.Parameter(0.1 * torch.randn(30, 10)), nn.Parameter(torch.randn(30, 10))
    groups = [
        {"params": [("circle", circle)], "constraint": Circle(1.0)},
        {"params": [("sphere", sphere)], "constraint": Sphere(1.0, slack=False)},
    ]
    with pytest.warns(UserWarning, match="did not satisfy"):
        optimizer, thermometer = chain(groups, torch.zeros_like, 900, lr=0.2, temperature=0.3, friction=1.0)
    for row, freedom in zip(thermometer.table(), (300, 270), strict=True):
        assert row.freedom == freedom
        assert row.kinetic == pytest.approx(0.3, rel=0.03)
        assert math.isnan(row.configurational) == (row.name == "sphere")
    ratios = equipartition(optimizer)
    for (name, ratio), kinetic in zip(ratios.items(), optimizer.temperatures(), strict=True):
        assert name in ("circle", "sphere")
        assert ratio == pytest.approx(kinetic / 0.3, rel=1e-6)


def test_positions_on_circles_have_the_temperature_that_the_optimizer_records():
    """Every step read: the identity of law/test_configurational, tensor by tensor instead of group by group."""
    weights = nn.Parameter(0.1 * torch.randn(40, 10))
    optimizer = Langevin([("w", weights)], 0.2, constraint=Circle(2.0), temperature=0.05, seed=3)
    thermometer = Thermometer(optimizer)
    optimizer.record_temperatures()
    for _ in range(1500):
        weights.grad = 2.0 * (weights.detach() - 0.5)
        thermometer.read()
        optimizer.step()
    (row,) = thermometer.table()
    assert row.configurational == pytest.approx(optimizer.temperatures(kind="configurational")[0], rel=1e-3)
    assert row.configurational == pytest.approx(0.05, rel=0.03)


def test_an_unread_thermometer_says_so(bowl):
    with pytest.raises(ValueError, match="no reading"):
        Thermometer(Langevin(bowl, 0.1)).table()
