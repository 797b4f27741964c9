"""Heun's step is the trapezoidal formula, second order, and asks for the closure it needs."""

import math

import pytest
import torch
from torch import nn

from holonom import presets
from holonom.heun import HeunLangevin


def solve(h: float, heun: bool) -> float:
    """x' = −sin x from x = 1 to time 1; the exact answer is 2·atan(tan(½)e^{−1})."""
    x = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    opt = (HeunLangevin if heun else HeunLangevin.__bases__[0])([x], h, scheme="L")

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = -torch.cos(x)
        loss.backward()
        return loss

    for _ in range(round(1 / h)):
        opt.step(closure)
    return abs(x.item() - 2 * math.atan(math.tan(0.5) * math.exp(-1)))


def test_second_order_where_euler_is_first() -> None:
    assert solve(0.05, heun=False) / solve(0.025, heun=False) == pytest.approx(2, rel=0.1)
    assert solve(0.05, heun=True) / solve(0.025, heun=True) == pytest.approx(4, rel=0.1)


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
