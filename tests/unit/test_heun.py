"""Heun's step is the trapezoidal formula, second order, and asks for the closure it needs."""

import math

import pytest
import torch
from torch import nn

from holonom import presets
from holonom.heun import HeunLangevin


def solve(h: float, heun: bool, decay: float = 0.0) -> float:
    """x' = −sin x − λx from x = 1 to time 1: its distance from a solution with small steps of fourth order."""
    x = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    opt = (HeunLangevin if heun else HeunLangevin.__bases__[0])([x], h, scheme="L", weight_decay=decay)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = -torch.cos(x)
        loss.backward()
        return loss

    for _ in range(round(1 / h)):
        opt.step(closure)
    return abs(x.item() - runge_kutta(lambda y: -math.sin(y) - decay * y, 1.0))


def runge_kutta(slope, x: float, h: float = 0.01) -> float:
    for _ in range(round(1 / h)):
        a = slope(x)
        b = slope(x + h / 2 * a)
        c = slope(x + h / 2 * b)
        x += h / 6 * (a + 2 * b + 2 * c + slope(x + h * c))
    return x


def test_the_reference_is_right() -> None:
    """Without decay there is a formula."""
    assert runge_kutta(lambda y: -math.sin(y), 1.0) == pytest.approx(2 * math.atan(math.tan(0.5) / math.e), abs=1e-10)


@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_second_order_where_euler_is_first(decay) -> None:
    """With weight decay too: it is part of the force, and so of the corrector."""
    assert solve(0.05, False, decay) / solve(0.025, False, decay) == pytest.approx(2, rel=0.1)
    assert solve(0.05, True, decay) / solve(0.025, True, decay) == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("maximize", [False, True])
def test_replicas_have_a_rate_and_a_decay_each(maximize) -> None:
    """One value per leading index, whatever the other dimensions are."""
    options = {"scheme": "L", "maximize": maximize}
    rates, decays = torch.tensor([0.1, 0.03, 0.2]).double(), torch.tensor([0.5, 0.0, 0.1]).double()
    start = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)

    def train(x, **settings):
        p = nn.Parameter(x.clone())
        opt = HeunLangevin([p], **settings, **options)

        def closure() -> None:
            p.grad = torch.sin(2 * p.detach())

        for _ in range(4):
            opt.step(closure)
        return p.detach()

    together = train(start, lr=rates, weight_decay=decays)
    for i in range(3):
        alone = train(start[i], lr=rates[i].item(), weight_decay=decays[i].item())
        torch.testing.assert_close(together[i], alone, rtol=0, atol=1e-14)


def test_dhsgdc_with_heun_equals_its_formula() -> None:
    """Verlet for the body; the output layer's corrector sees the body's new position."""
    h = 0.1
    a, b = (nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in (0.7, -0.4))
    opt = presets.dhsgdc([[a], [b]], lr=h, heun=True)

    def slope(a: float, b: float) -> tuple[float, float]:
        return 2 * a + b + a**3, a + 3 * b - b**3

    def closure() -> float:
        a.grad, b.grad = (torch.tensor(g, dtype=torch.float64) for g in slope(a.item(), b.item()))
        return 0.0

    x, y, p = 0.7, -0.4, 0.0
    for _ in range(10):
        opt.step(closure)
        f, g = slope(x, y)
        p -= h / 2 * f
        x, predicted = x + h * p, y - h * g
        y = predicted - h / 2 * (slope(x, predicted)[1] - g)
        p -= h / 2 * slope(x, y)[0]
        assert a.item() == pytest.approx(x, abs=1e-12)
        assert b.item() == pytest.approx(y, abs=1e-12)


def test_a_missing_closure_is_explained() -> None:
    opt = HeunLangevin([nn.Parameter(torch.zeros(1))], 0.1, scheme="L")
    with pytest.raises(ValueError, match=r"step\(closure\)"):
        opt.step()
