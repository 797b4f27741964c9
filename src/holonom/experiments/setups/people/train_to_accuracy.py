"""Networks trained to given test accuracies, and their predictions on other images then (thesis 6.2.2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ...._files import load, save
from ...._random import mix
from ...._training.stepper import Stepper
from ....batches import Batches, Shuffled
from ....ensemble import Ensemble
from ... import ranks
from ...run import Run
from .classifiers import NETWORKS, Digits, Shifted, accuracy, network, probabilities

TOLERANCE = 0.0005  # of the target test accuracy
OVERSHOOT = 0.01  # a run so far above a target is not expected to come back
SECONDS_BETWEEN_CHECKPOINTS = 30.0

Predictions = dict[str, Tensor]


def predictions_at(
    run: Run,
    settings: SimpleNamespace,
    name: str,
    digits: Digits,
    images: Tensor,
    targets: Sequence[float],
    seeds: int = 1,
    checkpoint: Path | None = None,
) -> Predictions:
    """Train this rank's share of one network's runs; their predictions when each reaches a target accuracy.

    With ``seeds`` a run of the study is that many trainings, R = seeds · runs, one after the other.

    Training passes the targets one after the other. A run's predictions at a target are those of the first evaluation
    with a test accuracy within 0.05 % of it; if there is none until it is 1 % above, those of the closest evaluation.
    With a ``checkpoint`` an interrupted training continues from that file, bit for bit.

    Returns:
        ``probabilities`` (targets, R, N, 10), and ``accuracy`` and ``step`` (targets, R) of their evaluations.
    """
    training = NETWORKS[name]
    first, count = ranks.share(run.replicas)
    seed = mix(run.seed, list(NETWORKS).index(name), seeds)  # networks of one set share no randomness
    make = network(training.kind, settings)
    ensemble = Ensemble(make, seeds * count, seed, first=seeds * first).to(run.device)
    optimizer = torch.optim.AdamW(
        ensemble.parameters(),
        settings.lr_factor * training.lr,
        weight_decay=training.weight_decay,
        capturable=ensemble.seeds.is_cuda,
    )
    batches = (Shifted if training.shifts else Shuffled)(digits.x, digits.y, training.batch, ensemble.seeds)
    closest = Closest(targets, seeds * count, len(images))
    steps = settings.epochs * batches.per_epoch

    with run.progress(name, steps) as progress:

        def evaluate(step: int) -> bool:
            found = accuracy(ensemble, digits.x_test, digits.y_test).double().cpu()
            closest.update(step, found, lambda: probabilities(ensemble, images).cpu())
            progress(step, steps, None)
            return bool(closest.settled.all())

        train_until(ensemble, optimizer, batches, steps, settings.look_every, evaluate, closest, checkpoint)
    return closest.predictions()


class Closest:
    """For every target and run, the predictions closest to it; settled once within the tolerance or far above."""

    def __init__(self, targets: Sequence[float], runs: int, images: int) -> None:
        self.targets = torch.tensor(targets, dtype=torch.float64)[:, None]
        shape = (len(targets), runs)
        self.distance = torch.full(shape, torch.inf, dtype=torch.float64)
        self.settled = torch.zeros(shape, dtype=torch.bool)
        self.accuracy = torch.full(shape, torch.nan, dtype=torch.float64)
        self.step = torch.zeros(shape, dtype=torch.int64)
        self.probabilities = torch.zeros(*shape, images, 10)

    def update(self, step: int, accuracy: Tensor, predict: Callable[[], Tensor]) -> None:
        """``accuracy`` (R,) after a step; ``predict`` returns the (R, N, 10) probabilities."""
        distance = (accuracy - self.targets).abs()
        better = (distance < self.distance) & ~self.settled
        self.settled |= (distance <= TOLERANCE + 1e-9) | (accuracy > self.targets + OVERSHOOT)
        if not better.any():
            return
        self.distance = torch.where(better, distance, self.distance)
        self.accuracy = torch.where(better, accuracy, self.accuracy)
        self.step[better] = step
        self.probabilities = torch.where(better[..., None, None], predict(), self.probabilities)

    def state_dict(self) -> Predictions:
        return {**self.predictions(), "distance": self.distance, "settled": self.settled}

    def load_state_dict(self, state: Predictions) -> None:
        for name, value in state.items():
            getattr(self, name).copy_(value)

    def predictions(self) -> Predictions:
        return {"probabilities": self.probabilities, "accuracy": self.accuracy, "step": self.step}


def train_until(
    ensemble: Ensemble,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    steps: int,
    every: int,
    evaluate: Callable[[int], bool],
    found: Closest | None = None,
    checkpoint: Path | None = None,
) -> None:
    """Train until ``evaluate``, called after every ``every`` steps and at the end, returns True.

    ``found`` is what evaluations have found, and goes into the checkpoint.
    """
    parts = {"model": ensemble, "optimizer": optimizer, **({} if found is None else {"found": found})}
    stepper = Stepper(ensemble, optimizer, cross_entropy, batches, compiled=False)
    devices = [ensemble.seeds.device] if ensemble.seeds.is_cuda else []
    with torch.random.fork_rng(devices):  # dropout and shifts use the global generator
        torch.manual_seed(int(ensemble.seeds[0]))
        done = _continue(checkpoint, parts) if checkpoint and checkpoint.exists() else 0
        saved = time.monotonic()
        order = batches.order(done // batches.per_epoch)
        while done < steps:
            epoch, place = divmod(done, batches.per_epoch)
            if place == 0:
                order = batches.order(epoch)
            count = min(every - done % every, batches.per_epoch - place, steps - done)
            ensemble.train()
            stepper.run(order[place : place + count])
            done += count
            if done % every and done != steps:
                continue
            if evaluate(done):
                return
            if checkpoint and time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS:
                _write(checkpoint, parts, done)
                saved = time.monotonic()


def _write(checkpoint: Path, parts: dict[str, Any], step: int) -> None:
    states = {name: part.state_dict() for name, part in parts.items()}
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    save({"step": step, "random": torch.get_rng_state(), "random_cuda": cuda, **states}, checkpoint)


def _continue(checkpoint: Path, parts: dict[str, Any]) -> int:
    """The step to continue from."""
    state = load(checkpoint, "delete it to train this network again")
    for name, part in parts.items():
        part.load_state_dict(state[name])
    torch.set_rng_state(state["random"])
    if state["random_cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["random_cuda"])
    return int(state["step"])
