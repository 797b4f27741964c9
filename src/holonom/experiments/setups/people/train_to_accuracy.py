"""Networks trained until a test accuracy is reached, and what they then say about other images (thesis 6.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ....batches import Batches, Shuffled
from ....capture import Stepper
from ....ensemble import Ensemble
from ....noise import mix
from ... import ranks
from ...run import Run
from .classifiers import READERS, Digits, Shifted, accuracy, network, probabilities

WITHIN = 0.0005  # of the target test accuracy
BEYOND = 0.01  # a run so far above a target is not waited for to come back

Answers = dict[str, Tensor]


def read(
    run: Run,
    settings: SimpleNamespace,
    name: str,
    digits: Digits,
    images: Tensor,
    targets: Sequence[float],
    seeds: int = 1,
) -> Answers:
    """Train this rank's share of one network's runs; what they say when each comes to a target accuracy.

    With ``seeds`` a run of the study is that many trainings, R = seeds · runs, one after the other.

    Training passes the targets one after the other, and a run's answer at a target is that of the first look at which
    its test accuracy is within 0.05 % of it; where there is no such look until it is 1 % beyond, of the one that came
    closest.

    Returns:
        ``probabilities`` (targets, R, N, 10), and ``accuracy`` and ``step`` (targets, R) at which they were given.
    """
    reader = READERS[name]
    first, count = ranks.share(run.replicas)
    seed = mix(run.seed, list(READERS).index(name), seeds)  # networks of one set have nothing in common
    make = network(reader.kind, settings)
    ensemble = Ensemble(make, seeds * count, seed, first=seeds * first).to(run.device)
    optimizer = torch.optim.AdamW(
        ensemble.parameters(),
        settings.lr_factor * reader.lr,
        weight_decay=reader.weight_decay,
        capturable=ensemble.seeds.is_cuda,
    )
    batches = (Shifted if reader.shifts else Shuffled)(digits.x, digits.y, reader.batch, ensemble.seeds)
    closest = Closest(targets, seeds * count, len(images))
    steps = settings.epochs * batches.per_epoch

    with run.progress(name, steps) as progress:

        def look(step: int) -> bool:
            found = accuracy(ensemble, digits.x_test, digits.y_test).double().cpu()
            closest.see(step, found, lambda: probabilities(ensemble, images).cpu())
            progress(step, steps, None)
            return bool(closest.settled.all())

        learn(ensemble, optimizer, batches, steps, settings.look_every, look)
    return closest.answers()


class Closest:
    """For every target and run, the answers given closest to it; settled once within the tolerance or far beyond."""

    def __init__(self, targets: Sequence[float], runs: int, images: int) -> None:
        self.targets = torch.tensor(targets, dtype=torch.float64)[:, None]
        shape = (len(targets), runs)
        self.distance = torch.full(shape, torch.inf, dtype=torch.float64)
        self.settled = torch.zeros(shape, dtype=torch.bool)
        self.accuracy = torch.full(shape, torch.nan, dtype=torch.float64)
        self.step = torch.zeros(shape, dtype=torch.int64)
        self.probabilities = torch.zeros(*shape, images, 10)

    def see(self, step: int, accuracy: Tensor, ask: Callable[[], Tensor]) -> None:
        """Runs have come to these accuracies; ``ask`` gives their (R, N, 10) answers."""
        distance = (accuracy - self.targets).abs()
        better = (distance < self.distance) & ~self.settled
        self.settled |= (distance <= WITHIN + 1e-9) | (accuracy > self.targets + BEYOND)
        if not better.any():
            return
        self.distance = torch.where(better, distance, self.distance)
        self.accuracy = torch.where(better, accuracy, self.accuracy)
        self.step[better] = step
        self.probabilities = torch.where(better[..., None, None], ask(), self.probabilities)

    def answers(self) -> Answers:
        return {"probabilities": self.probabilities, "accuracy": self.accuracy, "step": self.step}


def learn(
    ensemble: Ensemble,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    steps: int,
    every: int,
    look: Callable[[int], bool],
) -> None:
    """Train until ``look``, asked after every ``every`` steps and at the end, says that it is enough."""
    stepper = Stepper(ensemble, optimizer, cross_entropy, batches, compiled=False)
    devices = [ensemble.seeds.device] if ensemble.seeds.is_cuda else []
    with torch.random.fork_rng(devices):  # for dropout and shifts, which know no other source
        torch.manual_seed(int(ensemble.seeds[0]))
        done, order = 0, batches.order(0)
        while done < steps:
            epoch, place = divmod(done, batches.per_epoch)
            if place == 0:
                order = batches.order(epoch)
            count = min(every - done % every, batches.per_epoch - place, steps - done)
            ensemble.train()
            stepper.run(order[place : place + count])
            done += count
            if (done % every == 0 or done == steps) and look(done):
                return
