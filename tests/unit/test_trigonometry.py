"""The polynomials that compiled steps use: as exact as the library's functions, also at the corners."""

import math

import pytest
import torch

from holonom.trigonometry import cosines, half_turns, sines


def compiled(function):
    """What a compiler is shown, run as it is: the polynomials, without waiting for machine code."""
    return torch.compile(function, backend="eager", fullgraph=True)


@pytest.mark.parametrize(("ours", "theirs"), [(sines, torch.sin), (cosines, torch.cos)])
def test_multiples_of_pi(ours, theirs):
    u = torch.linspace(-1, 1, 20_001)
    exact = theirs(math.pi * u.double())
    assert (compiled(lambda x: ours([x])[0])(u) - exact).abs().max() < 2e-7
    assert (ours([u])[0] - exact).abs().max() < 3e-7  # π·u is rounded first


def test_angles():
    generator = torch.Generator().manual_seed(0)
    y, x = (torch.randn(20_000, generator=generator).exp() * torch.randn(20_000, generator=generator) for _ in range(2))
    exact = torch.atan2(y.double(), x.double()) / math.pi
    assert (compiled(half_turns)(y, x) - exact).abs().max() < 1e-7
    assert torch.equal(half_turns(y, x), torch.atan2(y, x) / math.pi)


def test_angles_on_the_axes_at_extremes_and_of_nothing():
    y = torch.tensor([0.0, 0.0, 0.0, 1.0, -1.0, 1e-30, 3e38, math.nan, 0.0, math.inf])
    x = torch.tensor([0.0, 1.0, -1.0, 0.0, 0.0, 1e-30, -3e38, 1.0, math.nan, 1.0])
    torch.testing.assert_close(compiled(half_turns)(y, x), torch.atan2(y, x) / math.pi, equal_nan=True)


def test_double_precision_takes_the_library():
    y, x = torch.randn(2, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(compiled(half_turns)(y, x), torch.atan2(y, x) / math.pi)
