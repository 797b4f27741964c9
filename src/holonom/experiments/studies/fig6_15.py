"""Thesis Fig. 6.15: no, standard and more augmentation."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Run
from ..setups.cifar.study import BLOCKS, CI, LARGE, PAPER, SMOKE, Arm, Study
from ..setups.shared.loss_lines import draw

BRIGHTNESS, BLOCKS_MEANT = 0.05, ("B2", "B3")


@experiment(
    "fig6.15",
    title="ResNet-18 on CIFAR-10 with no, standard and more augmentation",
    source="thesis Fig. 6.15",
    says="With a random brightness (0.05) besides flips and crops the barriers of single blocks are slightly higher, "
    "for blocks 2 and 3; without augmentation they are lower.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci=CI,
    large=LARGE,
    paper=PAPER,
)
def fig6_15(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    none, standard, more = arms = (
        study.arm("no augmentation", blocks=BLOCKS, augmented=False),
        study.arm("flips and crops", blocks=BLOCKS),
        study.arm(f"brightness {BRIGHTNESS:g} too", blocks=BLOCKS, brightness=BRIGHTNESS),
    )
    named = {arm.arm: arm for arm in arms}
    study.report(named, "Brightness: every image is multiplied by a factor from 0.95 to 1.05, as torchvision's jitter.")
    shown = {name: arm.lines for name, arm in named.items()}
    draw(run, "lines", shown, "Test loss while one block, or all, move.", yscale="log")
    return [
        greater("brightness raises the barriers of B2 and B3", "slightly", height(more), height(standard), by="median"),
        greater("without augmentation they are lower", "lower", height(standard), height(none), by="median"),
    ]


def height(arm: Arm) -> Array:
    """(runs,) mean of the two blocks' barriers."""
    mean: Array = np.mean([arm.blocks[name].heights() for name in BLOCKS_MEANT], 0)
    return mean
