"""The set-up of thesis 6.1: networks trained on CIFAR-10, and the lines from their initial to their trained states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ... import landscape
from ...data import cifar10
from ...metrics import distance
from .. import ranks
from ..claims import Claim, near
from ..run import Array, Run
from . import lines
from .lines import Line
from .networks import FOLDER, METRICS, Network, Networks, untrained
from .photographs import Photographs
from .recipes import Recipe, Start
from .walks import WHOLE, Blocks, Walks

SMOKE: dict[str, Any] = {
    "replicas": 2, "width": 2, "pool": True, "train": 64, "test": 32, "epochs": 1, "batch": 16, "tested": 16,
    "points": 5, "compiled": False,
}  # fmt: skip
CI: dict[str, Any] = {
    "replicas": 2, "width": 8, "pool": True, "train": 2000, "test": 300, "epochs": 3, "batch": 64, "tested": 100,
    "points": 11, "compiled": False,
}  # fmt: skip
PAPER: dict[str, Any] = {
    "replicas": 6, "width": 64, "pool": True, "train": 50_000, "test": 10_000, "epochs": 30, "batch": 128,
    "tested": 2000, "points": 26, "compiled": False,
}  # fmt: skip

FULL_WIDTH, FULL_IMAGES, FULL_EPOCHS = 64, 50_000, 100  # the thesis's

STAGES: Blocks = {"stem": "stem", **{f"B{i}": f"stages.{i - 1}" for i in range(1, 5)}, "fc": "head"}
BLOCKS: Blocks = {
    "stem": "stem", "B1": "stages.0", "B2": "stages.1", "B3": "stages.2", "B4.0": "stages.3.0", "B4.1": "stages.3.1",
    "fc": "head",
}  # fmt: skip
PUBLISHED_BARRIERS = ("B2", "B3", "B4.0")  # of ResNet-18, Fig. 6.16A
ACCURACIES = {"train_accuracy": "train accuracy %", "test_accuracy": "test accuracy %", "test_loss": "test loss"}


@dataclass
class Arm:
    """One recipe with every run's seed: metrics (epochs, runs), the line of the whole network and of its blocks."""

    arm: str
    recipe: Recipe
    curves: dict[str, Array]
    whole: Line
    blocks: dict[str, Line] = field(default_factory=dict)
    distance: Array = field(default_factory=lambda: np.zeros(0))
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

    @property
    def lines(self) -> dict[str, Line]:
        return {WHOLE: self.whole, **self.blocks}

    def highest(self) -> Array:
        """(runs,) height of the highest barrier of a single block."""
        top: Array = np.max([line.heights() for line in self.blocks.values()], 0)
        return top

    def mean_height(self, blocks: Iterable[str]) -> Array:
        """(runs,) of some blocks' barriers."""
        mean: Array = np.mean([self.blocks[name].heights() for name in blocks], 0)
        return mean

    def crossing(self) -> Array:
        """(runs,) 1 where some block has a barrier."""
        some: Array = np.max([line.barriers() for line in self.blocks.values()], 0)
        return some

    def with_barriers(self) -> tuple[str, ...]:
        """The blocks with a barrier in the mean over runs."""
        return tuple(name for name, line in self.blocks.items() if mean_shape(line) == "barrier")


class Study:
    """CIFAR-10, the networks of this run set, and what to look at on their lines."""

    def __init__(self, run: Run, settings: SimpleNamespace) -> None:
        self.run, self.settings = run, settings
        self.data = Photographs(cifar10(run.root), run.device, settings.train, settings.test)
        self.networks = Networks(run.folder.parent / FOLDER, self.data, compiled=settings.compiled)
        self.base = Recipe(
            width=settings.width, pool=settings.pool, images=len(self.data), epochs=settings.epochs,
            batch=settings.batch,
        )  # fmt: skip
        first, count = ranks.share(run.replicas)
        self.seeds = [run.seed * 1_000_003 + first + i for i in range(count)]
        self._first = first
        self.walks = Walks(self.networks, self.data, settings.tested, settings.points)

    def arm(
        self,
        name: str,
        recipe: Recipe | None = None,
        blocks: Blocks | None = None,
        begin: Callable[[int, Recipe], Start] | None = None,
        **changes: Any,
    ) -> Arm:
        """Train or read every run of a recipe (the base by default) with some changes, and walk along its lines.

        ``begin`` gives every run, known by its number and recipe, a start of its own.
        """
        chosen = replace(recipe or self.base, **changes)
        found, seconds = [], 0.0
        with self.run.progress(name, chosen.epochs * len(self.seeds), "epoch") as progress:
            for number, seed in enumerate(self.seeds):
                own = chosen.seeded(seed)
                if begin is not None:
                    own = replace(own, start=begin(self._first + number, own))
                network = self.networks.get(own, partial(_show, progress, number * chosen.epochs))
                _show(progress, (number + 1) * chosen.epochs, 0)
                seconds += network.seconds
                found.append(self._look(own, network, blocks or {}))
        self.run.seconds[name] = round(seconds, 2)
        curves, walked, ways = zip(*found, strict=True)
        paths = {block: self._line([one[block] for one in walked]) for block in (WHOLE, *(blocks or {}))}
        return Arm(
            name,
            chosen,
            {metric: ranks.gather(np.stack([one[i] for one in curves], 1)) for i, metric in enumerate(METRICS)},
            paths.pop(WHOLE),
            paths,
            ranks.gather(np.array([ways]))[0],
        )

    def _look(self, recipe: Recipe, network: Network, blocks: Blocks) -> tuple[list[Array], dict[str, Array], float]:
        """Metrics of every epoch, the loss along the whole and the blocks' lines, and the distance travelled (6.3)."""
        way = np.nan
        if not network.diverged:
            way = float(distance(untrained(recipe), network.initial, network.trained))
        return _padded(network, recipe.epochs), self.walks.along(recipe, network, blocks), way

    def _line(self, values: Sequence[Array]) -> Line:
        return Line(self.walks.alphas, ranks.gather(np.stack(values, 1)).T)

    def report(self, arms: Mapping[str, Arm], *notes: str) -> None:
        """Accuracies, barriers, curves, and what the reader should know."""
        self.run.save_curves(arms)
        self.run.summary(arms, ACCURACIES, "After training")
        lines.table(
            self.run, {f"{name}, {path}": line for name, arm in arms.items() for path, line in arm.lines.items()}
        )
        for note in (self._set_up(), *notes):
            self.run.note(note)

    def _set_up(self) -> str:
        own = self.settings
        pooled = "with" if own.pool else "without"
        less = (own.width, len(self.data)) != (FULL_WIDTH, FULL_IMAGES) or own.epochs < FULL_EPOCHS
        return (
            f"Optimizer, batch and augmentation are the chapter's; the networks train for {own.epochs} epochs (100 in "
            f"the thesis) on {len(self.data):,} images, the step falling tenfold after one and two thirds of them. "
            "ResNets are those for large images with a 3×3 first convolution, as the thesis describes, here "
            f"{pooled} the pooling behind it, of which it does not speak. On a line batch-norm statistics move with "
            f"the weights; the loss is that of {self.walks.tested:,} test images at {own.points} points. "
            "Training metrics are those met while training; an epoch leaves out what fills no batch; a GPU computes in "
            f"bfloat16, weights staying float32. {self.networks.trained} networks were trained for this "
            f"result and {self.networks.read} read from {FOLDER}/, where other experiments of this run set keep them."
            + (" Smaller or trained less than the thesis's, they are not held against its numbers." if less else "")
        )


def as_published(arm: Arm, name: str, published: str, values: Array, target: float, tolerance: float) -> list[Claim]:
    """That a number is the published one; claimed of networks that are as wide and trained as long as the thesis's."""
    own = arm.recipe
    if (own.width, own.images) != (FULL_WIDTH, FULL_IMAGES) or own.epochs < FULL_EPOCHS:
        return []
    return [near(name, published, values, target, tolerance)]


def mean_shape(line: Line) -> landscape.Shape:
    """The shape of the mean over the runs that did not diverge."""
    good = line.values[np.isfinite(line.values).all(1)]
    if not len(good):
        return landscape.Shape("diverged", np.nan, np.nan, np.nan, np.nan)
    return landscape.classify(torch.from_numpy(line.alphas), torch.from_numpy(good.mean(0)))


def vgg_layers(recipe: Recipe) -> Blocks:
    """ "layer 1" next to the images to "layer 11"."""
    return {f"layer {i}": names for i, names in enumerate(landscape.blocks_of(untrained(recipe)).values(), 1)}


def _show(progress: Callable[[int, int, Any], None], before: int, epoch: int) -> None:
    progress(before + epoch, 0, None)


def _padded(network: Network, epochs: int) -> list[Array]:
    """Every metric for all epochs: a training that stopped stays where it was, one that diverged is lost."""
    rows = []
    for metric in METRICS:
        *before, last = network.curves[metric]
        end = np.nan if network.diverged else last  # a lost network still has an accuracy, that of chance
        rows.append(np.array([*before, *[end] * (epochs - len(before))]))
    return rows
