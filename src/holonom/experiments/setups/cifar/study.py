"""The set-up of thesis 6.1: networks trained on CIFAR-10, and the lines from their initial to their trained states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from .... import landscape
from ....metrics import distance
from ... import ranks
from ...claims import Claim, near
from ...run import Array, Run
from ..shared import loss_lines as lines
from ..shared.loss_lines import Line
from .network_lines import WHOLE, Blocks, Walks
from .networks import FOLDER, Network, untrained
from .recipes import Recipe
from .training import ACCURACIES, Begin, Trained, Training

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


@dataclass
class Arm(Trained):
    """One recipe with every run's seed: its metrics, the line of the whole network and of its blocks."""

    whole: Line = field(kw_only=True)
    blocks: dict[str, Line] = field(default_factory=dict)
    distance: Array = field(default_factory=lambda: np.zeros(0))

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


class Study(Training):
    """Trained networks, and what to look at on their lines."""

    def __init__(self, run: Run, settings: SimpleNamespace) -> None:
        super().__init__(run, settings)
        self.walks = Walks(self.networks, self.data, settings.tested, settings.points)

    def arm(
        self,
        name: str,
        recipe: Recipe | None = None,
        blocks: Blocks | None = None,
        begin: Begin | None = None,
        **changes: Any,
    ) -> Arm:
        """Train or read every run of a recipe (the base by default) with some changes, and walk along its lines.

        ``begin`` gives every run, known by its number and recipe, a start of its own.
        """
        found: list[tuple[dict[str, Array], float]] = []
        trained = self.train(
            name, replace(recipe or self.base, **changes), begin,
            lambda own, network: found.append(self._look(own, network, blocks or {})),
        )  # fmt: skip
        walked, ways = zip(*found, strict=True)
        paths = {block: self._line([one[block] for one in walked]) for block in (WHOLE, *(blocks or {}))}
        return Arm(**vars(trained), whole=paths.pop(WHOLE), blocks=paths, distance=ranks.gather(np.array([ways]))[0])

    def _look(self, recipe: Recipe, network: Network, blocks: Blocks) -> tuple[dict[str, Array], float]:
        """The loss along the whole and the blocks' lines, and the distance travelled (6.3)."""
        way = np.nan
        if not network.diverged:
            way = float(distance(untrained(recipe), network.initial, network.trained))
        return self.walks.along(recipe, network, blocks), way

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
