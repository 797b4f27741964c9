"""Weights that stay bounded: |w| ≤ 0.2 for every weight, at every step, with SGD's own settings.

``Langevin.like_sgd`` has SGD's lr and momentum; the circle constraint then bounds the weights exactly, where clipping
would pile them up at the bound and weight decay only pulls.
"""

import torch
from torch import nn

import holonom
from holonom.constraints import Circle
from holonom.partitions import biases, weights

if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(2000, 20)
    y = (x[:, :5].prod(1) > 0).long()
    model = nn.Sequential(nn.Linear(20, 200), nn.Tanh(), nn.Linear(200, 2))

    groups = holonom.partition(model, {weights: {"constraint": Circle(radius=0.2)}, biases: {}})
    optimizer = holonom.Langevin.like_sgd(groups, lr=0.05, momentum=0.9)
    print(optimizer)

    for step in range(400):
        batch = torch.randint(len(x), (100,))
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            largest = max(p.abs().max().item() for p in model.parameters() if p.ndim == 2)
            print(f"step {step + 1}: loss {loss.item():.3f}, largest |w| {largest:.4f} (bound 0.2)")
