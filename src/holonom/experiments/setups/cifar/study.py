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
from ...planning import PlannedRun
from ...run import Array, Run
from ..shared import loss_lines
from ..shared.loss_lines import Line
from .network_lines import WHOLE, Blocks, NetworkLines
from .networks import FOLDER, Network, untrained
from .recipes import Recipe
from .training import ACCURACIES, StartOf, Trained, Training

SMOKE: dict[str, Any] = {
    "replicas": 2, "width": 2, "pool": True, "train": 64, "test": 32, "epochs": 1, "batch": 16, "tested": 16,
    "points": 5, "compiled": False,
}  # fmt: skip
CI: dict[str, Any] = {
    "replicas": 2, "width": 8, "pool": True, "train": 2000, "test": 300, "epochs": 3, "batch": 64, "tested": 100,
    "points": 11, "compiled": False,
}  # fmt: skip
PAPER: dict[str, Any] = {
    "replicas": 10, "width": 64, "pool": True, "train": 50_000, "test": 10_000, "epochs": 100, "batch": 128,
    "tested": 10_000, "points": 26, "compiled": False,
}  # fmt: skip
LARGE = {**PAPER, "replicas": 6, "epochs": 30, "tested": 2000}

FULL_WIDTH, FULL_IMAGES, FULL_EPOCHS = PAPER["width"], PAPER["train"], PAPER["epochs"]

STAGES: Blocks = {"stem": "stem", **{f"B{i}": f"stages.{i - 1}" for i in range(1, 5)}, "fc": "head"}
BLOCKS: Blocks = {
    "stem": "stem", "B1": "stages.0", "B2": "stages.1", "B3": "stages.2", "B4.0": "stages.3.0", "B4.1": "stages.3.1",
    "fc": "head",
}  # fmt: skip
PUBLISHED_BARRIERS = ("B2", "B3", "B4.0")  # of ResNet-18, Fig. 6.16A


@dataclass
class Arm(Trained):
    """All runs of one recipe: metrics, the line of the whole network and those of its blocks."""

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
        return tuple(name for name, line in self.blocks.items() if mean_profile(line) == "barrier")


class Study(Training):
    """Trained networks and the loss on their lines."""

    def __init__(self, run: Run, settings: SimpleNamespace) -> None:
        super().__init__(run, settings)
        self.network_lines = NetworkLines(self.networks, self.data, settings.tested, settings.points)

    def arm(
        self,
        name: str,
        recipe: Recipe | None = None,
        blocks: Blocks | None = None,
        start_of: StartOf | None = None,
        **changes: Any,
    ) -> Arm:
        """Train or read every run of a recipe (the base by default) with some changes, and evaluate its lines.

        ``start_of`` gives every run another start.
        """
        losses: list[dict[str, Array]] = []
        distances: list[float] = []

        def inspect(recipe: Recipe, network: Network) -> None:
            ends = network.initial, network.trained
            distances.append(np.nan if network.diverged else float(distance(untrained(recipe), *ends)))  # (6.3)
            losses.append(self.network_lines.losses(recipe, network, blocks or {}))

        trained = self.train(name, replace(recipe or self.base, **changes), start_of, inspect)
        if isinstance(self.run, PlannedRun):
            flat = Line(self.network_lines.alphas, np.zeros((self.run.replicas, len(self.network_lines.alphas))))
            return Arm(**vars(trained), whole=flat, blocks=dict.fromkeys(blocks or {}, flat), distance=np.zeros(1))
        lines = {block: self._line([one[block] for one in losses]) for block in losses[0]}
        moved = ranks.gather(np.array([distances]))[0]
        return Arm(**vars(trained), whole=lines.pop(WHOLE), blocks=lines, distance=moved)

    def _line(self, values: Sequence[Array]) -> Line:
        return Line(self.network_lines.alphas, ranks.gather(np.stack(values, 1)).T)

    def report(self, arms: Mapping[str, Arm], *notes: str) -> None:
        """Accuracies, barriers, curves and notes."""
        self.run.save_curves(arms)
        self.run.summary(arms, ACCURACIES, "After training")
        loss_lines.table(
            self.run, {f"{name}, {path}": line for name, arm in arms.items() for path, line in arm.lines.items()}
        )
        for note in (self._setup_note(), *notes):
            self.run.note(note)

    def _setup_note(self) -> str:
        settings = self.settings
        pooled = "with" if settings.pool else "without"
        reduced = (settings.width, len(self.data)) != (FULL_WIDTH, FULL_IMAGES) or settings.epochs < FULL_EPOCHS
        return (
            "Optimizer, batch and augmentation are the chapter's; the networks train for "
            f"{settings.epochs} epochs (100 in the thesis) on {len(self.data):,} images, "
            "the step divided by ten after one and two thirds of them. ResNets are those for large images "
            "with a 3×3 first convolution, as the thesis describes, here "
            f"{pooled} the pooling behind it, which it does not mention. On a line batch-norm statistics are "
            f"interpolated with the weights; the loss is the mean over {self.network_lines.tested:,} test images at "
            f"{settings.points} points. Training metrics are means over the batches of an epoch, which leaves out an "
            "incomplete batch. A GPU computes in bfloat16 with float32 weights. "
            f"{self.networks.trained} networks were trained for this result and {self.networks.read} read from "
            f"{FOLDER}/, the cache of this run set."
            + (" Smaller or trained less than the thesis's, they are not compared with its numbers." if reduced else "")
        )


def as_published(arm: Arm, name: str, published: str, values: Array, target: float, tolerance: float) -> list[Claim]:
    """The claim that a number is the published one; only for networks as wide and trained as long as the thesis's."""
    recipe = arm.recipe
    if (recipe.width, recipe.images) != (FULL_WIDTH, FULL_IMAGES) or recipe.epochs < FULL_EPOCHS:
        return []
    return [near(name, published, values, target, tolerance)]


def mean_profile(line: Line) -> landscape.BarrierProfile:
    """The profile of the mean over the runs that did not diverge."""
    good = line.values[np.isfinite(line.values).all(1)]
    if not len(good):
        return landscape.BarrierProfile("diverged", np.nan, np.nan, np.nan, np.nan)
    return landscape.classify(torch.from_numpy(line.alphas), torch.from_numpy(good.mean(0)))


def vgg_layers(recipe: Recipe) -> Blocks:
    """ "layer 1" next to the images to "layer 11"."""
    return {f"layer {i}": names for i, names in enumerate(landscape.blocks_of(untrained(recipe)).values(), 1)}


def patterns_of(blocks: Blocks, names: Iterable[str]) -> tuple[str, ...]:
    """The name patterns of some of the blocks."""
    given = [blocks[name] for name in names]
    return tuple(pattern for one in given for pattern in ([one] if isinstance(one, str) else one))


def barrier_blocks(arm: Arm, published: tuple[str, ...] = PUBLISHED_BARRIERS) -> tuple[tuple[str, ...], bool]:
    """The blocks with barriers, and True; the published ones and False if all blocks have barriers here, or none."""
    measured = arm.with_barriers()
    informative = 0 < len(measured) < len(arm.blocks)
    return (measured if informative else published), informative


def barrier_note(blocks: tuple[str, ...], measured: bool, network: str = "ResNet-18") -> str:
    """How the blocks with barriers were chosen."""
    why = "in the mean over runs" if measured else "in the thesis; here none have, or all, in the mean over runs"
    return f"{network}: {', '.join(blocks)} are those with barriers {why}."
