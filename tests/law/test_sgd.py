"""OBA at τ = 0 *is* torch.optim.SGD with momentum: μ = e^{−γh}, lr = h², to rounding, on a network in training.

With v = −p/h, O gives p ← μp, B adds −h∇L, so v ← μv + ∇L; A moves θ by hp = −h²v. The two programs round
differently, and training amplifies what they round: up to 300 roundings were seen after five hundred steps of
a net that learns its task, and 3000 are allowed. In double precision a factor of 1 + 1e-11 would show.
"""

import copy

import pytest
import torch
from torch import nn

from holonom import Langevin

STEPS = 500


def task(dtype):
    """Three classes in the plane, three noisy arms of a spiral."""
    generator = torch.Generator().manual_seed(5)
    label = torch.arange(90) % 3
    radius = torch.linspace(0.1, 1, 90, dtype=torch.float64)
    angle = 4 * radius + 2.1 * label
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    points += 0.02 * torch.randn(points.shape, generator=generator, dtype=torch.float64)
    return points.to(dtype), label


def net(dtype):
    with torch.random.fork_rng():
        torch.manual_seed(6)
        return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def train(model, optimizer, dtype):
    points, label = task(dtype)
    generator = torch.Generator().manual_seed(7)
    losses = []
    for _ in range(STEPS):
        batch = torch.randint(len(label), (30,), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points[batch]), label[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[:50]) / 50, sum(losses[-50:]) / 50


@pytest.mark.parametrize(
    ("momentum", "decay", "dtype"),
    [(0.9, 0.0, torch.float64), (0.9, 1e-2, torch.float64), (0.0, 1e-2, torch.float64), (0.9, 1e-2, torch.float32)],
)
def test_oba_without_noise_is_sgd_with_momentum(momentum, decay, dtype):
    ours = net(dtype)
    theirs = copy.deepcopy(ours)
    lr = 0.1 if momentum else 0.3
    before, after = train(ours, Langevin.like_sgd(ours.parameters(), lr, momentum, weight_decay=decay), dtype)
    train(theirs, torch.optim.SGD(theirs.parameters(), lr, momentum, weight_decay=decay), dtype)
    assert after < 0.9 * before
    for p, q in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(p, q, rtol=0, atol=3000 * torch.finfo(dtype).eps)
