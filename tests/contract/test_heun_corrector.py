"""Heun's corrector takes the whole force, weight decay included, and every replica's own rate."""

import pytest
import torch
from torch import nn

from holonom.heun import HeunLangevin


def loss(q: torch.Tensor) -> torch.Tensor:
    return (q - 0.3).pow(4).sum()


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(
    "decay", [0.0, 0.4, torch.tensor([0.4, 0.1], dtype=torch.float64)], ids=["none", "one", "each"]
)
@pytest.mark.parametrize("rate", [0.1, torch.tensor([0.1, 0.02], dtype=torch.float64)], ids=["one", "each"])
def test_the_corrected_step_is_the_trapezoidal_rule(rate, decay, maximize):
    q = nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3))
    opt = HeunLangevin([q], rate, scheme="L", weight_decay=decay, maximize=maximize)
    h, wd = (x if isinstance(x, float) else x.view(2, 1) for x in (rate, decay))

    def force(x):
        gradient = torch.func.grad(loss)(x)
        return (-gradient if maximize else gradient) + wd * x

    def closure():
        opt.zero_grad()
        value = loss(q)
        value.backward()
        return value

    start = q.detach().clone()
    first = start - h * force(start)
    opt.step(closure)
    torch.testing.assert_close(q.detach(), first - h / 2 * (force(first) - force(start)), rtol=1e-12, atol=1e-12)
