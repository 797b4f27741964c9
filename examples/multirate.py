"""Fine-tuning on two time scales: the head learns at every step, the body gets a gradient every fifth.

A network trained on one spiral is tuned to its mirror image, once with SGD and once with the body drifting along
its momentum between gradients (thesis Algorithm 5.1). Operations are counted, not timed, so they repeat exactly.
"""

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import holonom
from holonom.data import spirals


def data(seed: int, mirrored: bool) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = spirals(1000, turns=2, scale=2, noise=0.02, generator=torch.Generator().manual_seed(seed))
    return (x * torch.tensor([-1.0, 1.0]) if mirrored else x), y


def train(model: nn.Sequential, opt: holonom.Multirate, mirrored: bool, steps: int) -> None:
    x, y = data(1, mirrored)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        batch = torch.randint(len(x), (50,), generator=generator)
        with opt.due():  # only what is due this step is differentiated
            nn.functional.binary_cross_entropy_with_logits(model(x[batch])[:, 0], y[batch]).backward()
        opt.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    body = [module for n in (2, 64, 64, 64, 64) for module in (nn.Linear(n, 64), nn.Tanh())]
    pretrained = nn.Sequential(*body, nn.Linear(64, 1))
    train(pretrained, holonom.Multirate(pretrained.parameters(), lr=0.02), mirrored=False, steps=2000)

    holonom.multirate.plan(pretrained, data(1, True)[0][:50], periods=(2, 5))  # which part should be fast?
    spent = {}
    for name, every in (("SGD", 1), ("multirate", 5)):
        model = copy.deepcopy(pretrained)
        opt = holonom.Multirate(
            [{"params": model[-1].parameters(), "every": 1}, {"params": model[:-1].parameters(), "every": every}],
            lr=0.005, momentum=0.9, model=model,
        )  # fmt: skip
        with FlopCounterMode(display=False) as counter:  # all cycles cost the same: count one
            train(model, opt, mirrored=True, steps=5)
        spent[name] = counter.get_total_flops()
        train(model, opt, mirrored=True, steps=1995)
        x, y = data(3, mirrored=True)
        accuracy = ((model(x)[:, 0] > 0) == (y > 0.5)).float().mean().item()
        print(f"{name:>9}: test accuracy {accuracy:.3f} on the mirrored spiral")
    print(f"multirate needs {spent['multirate'] / spent['SGD']:.2f} of SGD's operations")
