"""A committee of networks in place of the people of thesis 6.2, until people have labelled the images.

Every member is a CNN (at the small scales a perceptron) trained on a bootstrap half of MNIST's training images, drawn
with replacement, so that members have seen different digits, as people have. They are trained for a fixed number of
epochs and share neither seeds nor stopping rule with the networks they are compared with.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ...._random import mix
from ....batches import Shuffled
from ....ensemble import Ensemble
from ....training import train
from ...run import Run
from .classifiers import Digits, accuracy, network

_STREAM = 6_002
BATCH, RATE = 128, 1e-3


class BootstrapHalves(Shuffled):
    """Another half of the images for every replica, drawn with replacement and shuffled in every epoch."""

    def __init__(self, x: Tensor, y: Tensor, size: int, seeds: Tensor) -> None:
        self.x, self.y = x, y
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        rows = torch.stack([torch.randint(len(y), (len(y) // 2,), generator=g) for g in generators]).to(x.device)
        super().__init__(rows, rows, size, seeds, own_data=True)

    def take(self, index: Tensor) -> tuple[Tensor, ...]:
        rows = super().take(index)[0]
        return self.x[rows], self.y[rows]


def untrained_committee(run: Run, settings: SimpleNamespace) -> Ensemble:
    make = network(settings.voter, settings)
    return Ensemble(make, settings.voters, mix(run.seed, _STREAM)).to(run.device)


def train_committee(run: Run, settings: SimpleNamespace, digits: Digits) -> dict[str, Tensor]:
    """A trained state of :func:`untrained_committee`."""
    ensemble = untrained_committee(run, settings)
    optimizer = torch.optim.Adam(ensemble.parameters(), RATE, capturable=ensemble.seeds.is_cuda)
    batches = BootstrapHalves(digits.x, digits.y, min(BATCH, len(digits.y) // 2), ensemble.seeds)
    steps = settings.voter_epochs * batches.per_epoch
    with run.progress("committee", steps) as progress:
        train(
            ensemble, optimizer, cross_entropy, batches, steps, evaluations=1, compiled=False, progress=progress,
            evaluate=lambda one: {"test accuracy": accuracy(one, digits.x_test, digits.y_test)},
        )  # fmt: skip
    return ensemble.state_dict()
