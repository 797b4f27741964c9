"""AdLaLa against Adam on a four-turn spiral, the start of thesis Fig. 3.10: a thermostat for the hidden layer.

Adaptive friction draws the hidden layer towards its temperature, against what the minibatch noise adds;
the output layer follows Langevin dynamics.
"""

import torch
from torch import nn

import holonom
from holonom.data import spirals


def train(make: str, steps: int = 4000) -> tuple[float, list[list[float]]]:
    """Test accuracy, and the groups' kinetic temperatures over the last quarter of the run."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x, y = spirals(1000, turns=4, scale=2, noise=0.02, generator=generator)
    test_x, test_y = spirals(1000, turns=4, scale=2, noise=0.02, generator=generator)
    model = nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 1))
    if make == "AdLaLa":
        settings = {"lr": 0.25, "coupling": 0.05, "driving_noise": 0.01}  # the thesis's
        optimizer: torch.optim.Optimizer = holonom.presets.adlala(model, **settings, seed=0)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    temperatures = []
    for step in range(steps):
        batch = torch.randint(len(x), (20,), generator=generator)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x[batch])[:, 0], y[batch]).backward()
        if isinstance(optimizer, holonom.Langevin) and step >= 3 * steps // 4:
            optimizer.synchronize()  # a kick is owed: momenta are half a step behind
            temperatures.append(optimizer.temperatures())
        optimizer.step()
    return ((model(test_x)[:, 0] > 0) == (test_y > 0.5)).float().mean().item(), temperatures


if __name__ == "__main__":
    for name in ("Adam", "AdLaLa"):
        accuracy, temperatures = train(name)
        print(f"{name:>7}: test accuracy {accuracy:.3f} after 4,000 steps of 20 points")
    hidden, output = torch.tensor(temperatures).mean(0).tolist()
    print(f"mean kinetic temperatures: hidden layer {hidden:.1e}, output layer {output:.1e} (target 1.0e-04)")
