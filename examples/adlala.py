"""AdLaLa against Adam on a four-turn spiral, the start of thesis Fig. 3.10: a thermostat for the hidden layer.

The hidden layer is kept at its temperature by adaptive friction, whatever the minibatch noise; the
output layer follows Langevin dynamics.
"""

import torch
from torch import nn

import holonom
from holonom.data import spirals


def train(make: str, steps: int = 4000) -> tuple[float, torch.optim.Optimizer]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x, y = spirals(1000, turns=4, scale=2, noise=0.02, generator=generator)
    test_x, test_y = spirals(1000, turns=4, scale=2, noise=0.02, generator=generator)
    model = nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 1))
    if make == "AdLaLa":
        optimizer: torch.optim.Optimizer = holonom.presets.adlala(model, lr=0.25, coupling=0.05)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(steps):
        batch = torch.randint(len(x), (20,), generator=generator)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x[batch])[:, 0], y[batch]).backward()
        optimizer.step()
    return ((model(test_x)[:, 0] > 0) == (test_y > 0.5)).float().mean().item(), optimizer


if __name__ == "__main__":
    for name in ("Adam", "AdLaLa"):
        accuracy, optimizer = train(name)
        print(f"{name:>7}: test accuracy {accuracy:.3f} after 4,000 steps of 20 points")
    hidden, output = optimizer.temperatures()
    print(f"kinetic temperatures: hidden layer {hidden:.1e}, output layer {output:.1e} (target 1.0e-04)")
