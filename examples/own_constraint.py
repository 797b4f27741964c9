"""A constraint of your own: attention scores of a mixture that must sum to one and stay positive.

Each row of the weight holds the square roots of probabilities: Σ_j w_j² = 1, and a second equation
keeps the mean cost Σ_j c_j w_j² at a budget. Any differentiable g(q) = 0 will do.
"""

import torch
from torch import nn

import holonom
from holonom.constraints import LevelSet

if __name__ == "__main__":
    torch.manual_seed(0)
    cost = torch.linspace(0.5, 2.0, 6)
    budget = 1.0

    def mixture_within_budget(row: torch.Tensor) -> torch.Tensor:
        share = row.square()
        return torch.stack([share.sum() - 1, (cost * share).sum() - budget])

    gain = torch.rand(4, 6)
    weight = nn.Parameter(torch.rand(4, 6) + 0.5)
    optimizer = holonom.Langevin(
        [weight], lr=0.1, friction=2.0, constraint=LevelSet(mixture_within_budget, batch_dims=1)
    )
    for step in range(300):
        reward = (gain * weight.square()).sum()
        optimizer.zero_grad()
        (-reward).backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: reward {reward.item():.4f}, worst violation {optimizer.residuals()[0]:.0e}")
    shares = weight.detach().square()
    print("row sums", shares.sum(1).tolist(), "costs", (shares @ cost).tolist())
