"""Networks trained on CIFAR-10: all runs of a recipe, and the metrics of every epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from ....data import cifar10
from ... import ranks
from ...planning import Part, PlannedRun, timed
from ...run import Array, Run
from .images import CifarImages
from .networks import FOLDER, METRICS, Network, Networks, untrained
from .recipes import Recipe, Start
from .trainer import Trainer

StartOf = Callable[[int, Recipe], Start]  # of a run, by its number and recipe
ACCURACIES = {"train_accuracy": "train accuracy %", "test_accuracy": "test accuracy %", "test_loss": "test loss"}


@dataclass
class Trained:
    """All runs of one recipe, which differ in their seeds: metrics (epochs, runs)."""

    arm: str
    recipe: Recipe
    curves: dict[str, Array]
    residual: float = 0.0

    @property
    def steps(self) -> Array:
        """At the end of every epoch."""
        return self.recipe.per_epoch * np.arange(1, self.recipe.epochs + 1)

    def final(self, metric: str) -> Array:
        """(runs,) at the end."""
        last: Array = self.curves[metric][-1]
        return last

    @property
    def accuracy(self) -> Array:
        """(runs,) of the test set, in per cent."""
        return 100 * self.final("test_accuracy")


class Training:
    """CIFAR-10 and the networks of this run set."""

    def __init__(self, run: Run, settings: SimpleNamespace) -> None:
        self.run, self.settings = run, settings
        self.data = CifarImages(cifar10(run.root), run.device, settings.train, settings.test)
        self.networks = Networks(run.folder.parent / FOLDER, self.data, compiled=settings.compiled)
        self.base = Recipe(
            width=settings.width, pool=settings.pool, images=len(self.data), epochs=settings.epochs,
            batch=settings.batch,
        )  # fmt: skip
        self._first, count = ranks.share(run.replicas)
        self.seeds = [run.seed * 1_000_003 + self._first + i for i in range(count)]
        self._planned: list[Recipe] = []
        self._rates: dict[Any, tuple[float, str]] = {}

    def train(
        self,
        name: str,
        recipe: Recipe,
        start_of: StartOf | None = None,
        inspect: Callable[[Recipe, Network], object] = lambda recipe, network: None,
    ) -> Trained:
        """Train every run of a recipe or read it from the cache. ``inspect`` is called with each network."""
        if isinstance(self.run, PlannedRun):
            return self._plan(self.run, name, recipe)
        curves, seconds = [], 0.0
        with self.run.progress(name, recipe.epochs * len(self.seeds), "epoch") as progress:
            for number, seed in enumerate(self.seeds):
                seeded = recipe.seeded(seed)
                if start_of is not None:
                    seeded = replace(seeded, start=start_of(self._first + number, seeded))
                network = self.networks.get(seeded, partial(_show, progress, number * recipe.epochs))
                _show(progress, (number + 1) * recipe.epochs, 0)
                seconds += network.seconds
                inspect(seeded, network)
                curves.append(_padded(network, recipe.epochs))
        self.run.seconds[name] = round(seconds, 2)
        gathered = {metric: ranks.gather(np.stack([one[i] for one in curves], 1)) for i, metric in enumerate(METRICS)}
        return Trained(name, recipe, gathered)

    def _plan(self, run: PlannedRun, name: str, recipe: Recipe) -> Trained:
        """List the networks that are not listed yet, those of a start among them, with the time of one step."""
        wanted = [recipe] if recipe.start is None else [recipe.start.network, recipe]
        for one in (one for one in wanted if one not in self._planned):
            title = name if one == recipe else f"{name}: start"
            key = (one.architecture, one.method, one.narrowed)
            if key not in self._rates:
                self._rates[key] = self._seconds_a_step(one)
            steps = one.epochs * one.per_epoch
            rate, bound = self._rates[key]
            run.parts.append(Part(title, len(self.seeds), steps, len(self.seeds) * steps * rate, bound=bound))
            self._planned.append(one)
        curves = {metric: np.zeros((recipe.epochs, run.replicas)) for metric in METRICS}
        return Trained(name, recipe, curves)

    def _seconds_a_step(self, recipe: Recipe) -> tuple[float, str]:
        cuda = self.data.device.type == "cuda"
        batches = self.data.epoch(replace(recipe, images=min(recipe.images, (20 if cuda else 1) * recipe.batch)), 0)
        trainer = Trainer(recipe, untrained(recipe), self.data.as_input, self.data.device)
        if cuda:  # the first steps warm up and are captured
            trainer.train_epoch(0, *batches)
        # Ends by reading its losses, which waits for a GPU.
        seconds, bound = timed(lambda: trainer.train_epoch(0, *batches), self.data.device)
        return seconds / len(batches[0]), bound


def _show(progress: Callable[[int, int, Any], None], before: int, epoch: int) -> None:
    progress(before + epoch, 0, None)


def _padded(network: Network, epochs: int) -> list[Array]:
    """Every metric for all epochs: an early stop repeats its last value, a divergence ends in NaN."""
    rows = []
    for metric in METRICS:
        *before, last = network.curves[metric]
        end = np.nan if network.diverged else last  # a diverged network still has an accuracy, by chance
        rows.append(np.array([*before, *[end] * (epochs - len(before))]))
    return rows
