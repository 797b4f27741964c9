"""A loop of Accelerate's with bounded rows, kept through ``save_state`` and ``load_state`` (needs accelerate).

Constrain the optimizer before ``prepare`` wraps it.
"""

import importlib.util
import tempfile

import torch
from torch import nn

import holonom
from holonom.constraints import Sphere
from holonom.data import spirals
from holonom.partitions import hidden, weights


def build():
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    held = holonom.constrain(opt, model, {weights & hidden: Sphere("initial")}, update="angular")
    x, y = spirals(500, turns=1, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=50)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 200)
    return accelerator, held, *accelerator.prepare(model, opt, loader, scheduler)


def train(accelerator, model, opt, loader, scheduler, epochs: int) -> float:
    for _ in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
            accelerator.backward(loss)
            opt.step()
            scheduler.step()
    return loss.item()


if __name__ == "__main__":
    if not importlib.util.find_spec("accelerate"):
        print("this example needs accelerate: pip install 'holonom[integrations]'")
    else:
        with tempfile.TemporaryDirectory() as folder:
            accelerator, held, *parts = build()
            train(accelerator, *parts, epochs=10)
            accelerator.save_state(folder)
            accelerator, held, *parts = build()
            accelerator.load_state(folder)
            print(f"resumed at epoch 10, loss {train(accelerator, *parts, epochs=10):.3f}")
            held.check(parts[1])
            print(f"norms are off by {max(held.residuals().values()):.0e}")
