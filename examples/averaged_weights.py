"""An average of weights on a sphere lies inside it: ``project_`` puts an EMA copy back before it is used."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holonom
from holonom.constraints import Sphere
from holonom.data import spirals
from holonom.partitions import hidden, weights

if __name__ == "__main__":
    torch.manual_seed(0)
    x, y = spirals(500, turns=1, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    held = holonom.constrain(opt, model, {weights & hidden: Sphere("initial")}, update="tangent")
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    for _ in range(500):
        batch = torch.randint(len(x), (50,))
        loss = nn.functional.binary_cross_entropy_with_logits(model(x[batch])[:, 0], y[batch])
        opt.zero_grad()
        loss.backward()
        opt.step()
        average.update_parameters(model)

    radius = model[2].weight.norm(dim=1)
    print(f"rows of the average are {(average.module[2].weight.norm(dim=1) / radius).mean():.4f} of their length")
    holonom.project_(average, like=held)
    print(f"projected: {(average.module[2].weight.norm(dim=1) / radius).mean():.4f}")
    with torch.no_grad():
        for name, one in (("model", model), ("average", average)):
            accuracy = ((one(x)[:, 0] > 0) == (y > 0.5)).float().mean()
            print(f"{name}: accuracy {accuracy:.3f}")
