"""A program to be killed: trains five compiled arms one after another, each with its checkpoint.

python -m tests.kill.arms FOLDER [PAUSE]
"""

import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from holonom import Ensemble, presets
from holonom.batches import Shuffled
from holonom.training import train

REPLICAS, STEPS = 2, 18
ARMS = {
    "sgd": lambda e: torch.optim.SGD(e.parameters(), 0.1, momentum=0.9),
    "c_sgd": lambda e: presets.c_cola_od(e, 0.05, 1.0),
    "sgld": lambda e: presets.sgld(e, 0.05, temperature=1e-3),
    "baoab": lambda e: presets.langevin(e, 0.1, temperature=1e-3),
    "adlala": presets.adlala,
}


def loss(output, target):
    return binary_cross_entropy_with_logits(output.squeeze(-1), target)


def train_arm(name, folder, pause):
    ensemble = Ensemble(
        lambda: nn.Sequential(nn.Linear(2, 3, bias=False), nn.Tanh(), nn.Linear(3, 1)), REPLICAS, seed=0
    )
    optimizer = ARMS[name](ensemble)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    batches = Shuffled(x, (x[:, 0] > 0).float(), 4, ensemble.seeds)

    def after_epoch(epoch):
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * 0.9
            if "temperature" in group:
                group["temperature"] = group["temperature"] * 0.8

    def progress(step, steps, history):
        print(name, step, flush=True)
        time.sleep(pause)

    history = train(
        ensemble,
        optimizer,
        loss,
        batches,
        STEPS,
        evaluate=lambda e: {"mean": e(x).mean((1, 2))},
        evaluations=STEPS // 2,
        checkpoint=folder / f"{name}.pt",
        after_epoch=after_epoch,
        compiled=True,
        progress=progress,
    )
    return {"weights": ensemble.state_dict(), "history": history.state(), "state": optimizer.state_dict()["state"]}


def main(folder, pause=0.0):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "weights that did not satisfy")
    warnings.filterwarnings("error", "holonom: torch.compile did not work here")
    torch.save({name: train_arm(name, folder, pause) for name in ARMS}, folder / "result.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
