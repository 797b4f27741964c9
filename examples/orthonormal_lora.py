"""A LoRA adapter with orthonormal factors: W + B diag(s) Aᵀ with AᵀA = BᵀB = I, like a singular value decomposition.

The factors hold directions only and the scales s alone hold sizes, so that no direction can collapse onto another.
"""

import copy

import torch
from torch import nn

import holonom
from holonom.constraints import Orthogonal


class LoRA(nn.Module):
    """A frozen linear map and a trained one of rank r beside it, which is zero at first."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.scales = nn.Parameter(torch.zeros(rank))
        for factor in (self.down, self.up):
            holonom.init.orthogonal_(factor.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.scales * self.down(x))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    change = torch.randn(64, 3) @ torch.randn(3, 64) / 20  # what the new task asks of the hidden map
    target = copy.deepcopy(model)
    target[2].weight.data += change

    model.requires_grad_(False)
    model[2] = LoRA(model[2], rank=4)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    factors = {"*.down.weight": Orthogonal(), "*.up.weight": Orthogonal()}
    held = holonom.constrain(opt, model, factors, update="tangent", momentum="project")
    losses = []
    for _ in range(400):
        x = torch.randn(128, 16)
        loss = nn.functional.mse_loss(model(x), target(x).detach())
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} → {losses[-1]:.4f}, scales {model[2].scales.tolist()}")
    print(f"max|AᵀA − I| and max|BᵀB − I|: {held.residuals()}")
