"""Thesis Fig. 6.6: less data and no augmentation."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.cifar.study import BLOCKS, CI, LARGE, PAPER, SMOKE, Study
from ..setups.shared.loss_lines import draw, mostly


@experiment(
    "fig6.6",
    title="ResNet-18 on CIFAR-10 with less data and without augmentation",
    source="thesis Fig. 6.6",
    says="With fewer training images the line of the whole network falls monotonically and the test accuracy drops. "
    "Without augmentation the barriers of single blocks are lower, and so is the accuracy; the setting with the "
    "highest barriers of blocks has the highest accuracy.",
    data=("cifar-10",),
    smoke={**SMOKE, "shares": (0.5, 0.75)},
    ci={**CI, "shares": (0.1, 0.5)},
    large={**LARGE, "shares": (0.1, 0.5)},
    paper={**PAPER, "shares": (0.1, 0.5)},
)
def fig6_6(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    few, half = (round(share * len(study.data)) for share in settings.shares)
    arms = {
        name: study.arm(name, blocks=BLOCKS, images=images, augmented=augmented)
        for name, images, augmented in (
            (f"{few:,} images", few, True),
            (f"{half:,} images", half, True),
            ("no augmentation", len(study.data), False),
            ("base", len(study.data), True),
        )
    }
    least, less, plain, base = arms.values()
    study.report(
        arms,
        f"The thesis does not say how much less data; here {few:,} and {half:,} images, for the same number of epochs.",
    )
    draw(
        run,
        "lines",
        {name: arm.lines for name, arm in arms.items()},
        "Test loss from initial to trained weights.",
        yscale="log",
    )
    heights = {name: arm.highest() for name, arm in arms.items()}
    others = np.max([heights[name] for name in arms if name != "base"], 0)
    return [
        greater(f"{few:,} images: lower accuracy, %", "lower", base.accuracy, least.accuracy),
        greater(f"{half:,} images: lower accuracy, %", "lower", base.accuracy, less.accuracy),
        mostly(f"{few:,} images: the line falls", "monotone decay", least.whole, "no barrier"),
        greater(
            f"{few:,} images: blocks' highest barrier is lower", "lower", base.highest(), least.highest(), by="median"
        ),
        greater("no augmentation: lower accuracy, %", "lower", base.accuracy, plain.accuracy),
        greater(
            "no augmentation: blocks' highest barrier is lower", "lower", base.highest(), plain.highest(), by="median"
        ),
        greater("the base has the blocks' highest barriers", "highest", base.highest(), others, by="median"),
    ]
