"""Hidden layers that stay orthogonal while they train, without touching the model.

A nine-layer ReLU network on a wound spiral (paper Fig. 4). Plain SGD loses the signal in the depth;
with orthogonal hidden weights gradients keep their size.
"""

import itertools

import torch
from torch import nn

import holonom
from holonom.data import spirals
from holonom.partitions import hidden, weights


def network() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [2, *[64] * 8, 1]
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1500) -> float:
    generator = torch.Generator().manual_seed(1)
    x, y = spirals(500, turns=3, scale=2, noise=0.02, generator=generator)
    for _ in range(steps):
        batch = torch.randint(len(x), (25,), generator=generator)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x[batch])[:, 0], y[batch]).backward()
        optimizer.step()
    return ((model(x)[:, 0] > 0) == (y > 0.5)).float().mean().item()


if __name__ == "__main__":
    plain = network()
    print(f"SGD:        accuracy {train(plain, torch.optim.SGD(plain.parameters(), lr=0.1)):.2f}")

    model = network()
    for place in holonom.partitions.locate(model):
        if (weights & hidden)(place):
            holonom.init.orthogonal_(place.parameter)
    rules = {weights & hidden: {"constraint": holonom.constraints.Orthogonal()}, "rest": {}}
    optimizer = holonom.Langevin(holonom.partition(model, rules, verbose=False), lr=0.1, scheme="L")
    print(f"o-CoLA-od:  accuracy {train(model, optimizer):.2f}, max|QᵀQ − I| = {max(optimizer.residuals()):.0e}")
