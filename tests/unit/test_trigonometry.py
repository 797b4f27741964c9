"""The polynomials that compiled steps use: as exact as the library's functions, also at the corners."""

import math

import pytest
import torch

from holonom.trigonometry import cosines, sines, turns


def compiled(function):
    """What a compiler is shown, run as it is: the polynomials, without waiting for machine code."""
    return torch.compile(function, backend="eager", fullgraph=True)


@pytest.mark.parametrize(("ours", "theirs"), [(sines, torch.sin), (cosines, torch.cos)])
def test_multiples_of_a_turn(ours, theirs):
    u = torch.linspace(-0.5, 0.5, 20_001)
    exact = theirs(2 * math.pi * u.double())
    assert (compiled(lambda x: ours([x])[0])(u) - exact).abs().max() < 2e-7
    assert (ours([u])[0] - exact).abs().max() < 3e-7  # 2π·u is rounded first


def test_sizes():
    u = torch.linspace(-0.5, 0.5, 20_001)
    exact = 0.7 * torch.sin(2 * math.pi * u.double())
    assert (compiled(lambda x: sines([x], 0.7)[0])(u) - exact).abs().max() < 1.5e-7
    assert (sines([u], 0.7)[0] - exact).abs().max() < 2e-7


def test_angles():
    generator = torch.Generator().manual_seed(0)
    y, x = (torch.randn(20_000, generator=generator).exp() * torch.randn(20_000, generator=generator) for _ in range(2))
    exact = torch.atan2(y.double(), x.double()) / (2 * math.pi)
    assert (compiled(turns)(y, x) - exact).abs().max() < 5e-8
    assert torch.equal(turns(y, x), torch.atan2(y, x) / (2 * math.pi))


def test_angles_on_the_axes_at_extremes_and_of_nothing():
    y = torch.tensor([0.0, 0.0, 0.0, 1.0, -1.0, 1e-30, 3e38, math.nan, 0.0, math.inf])
    x = torch.tensor([0.0, 1.0, -1.0, 0.0, 0.0, 1e-30, -3e38, 1.0, math.nan, 1.0])
    torch.testing.assert_close(compiled(turns)(y, x), torch.atan2(y, x) / (2 * math.pi), equal_nan=True)


def test_double_precision_takes_the_library():
    y, x = torch.randn(2, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(compiled(turns)(y, x), torch.atan2(y, x) / (2 * math.pi))
