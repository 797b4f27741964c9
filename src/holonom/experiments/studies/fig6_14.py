"""Thesis Fig. 6.14: less data and no augmentation at once."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.cifar.study import BLOCKS, CI, LARGE, PAPER, SMOKE, Study
from ..setups.shared.loss_lines import draw


@experiment(
    "fig6.14",
    title="ResNet-18 on CIFAR-10 with less data, with and without augmentation",
    source="thesis Fig. 6.14",
    says="Removing augmentation where there are fewer training images lowers the test accuracy and the barriers of "
    "single blocks further.",
    data=("cifar-10",),
    smoke={**SMOKE, "share": 0.5},
    ci={**CI, "share": 0.5},
    large={**LARGE, "share": 0.5},
    paper={**PAPER, "share": 0.5},
)
def fig6_14(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    fewer = round(settings.share * len(study.data))
    arms = {
        f"{images:,} images, {'augmented' if augmented else 'as they are'}": study.arm(
            f"{images:,} images, {'augmented' if augmented else 'as they are'}",
            blocks=BLOCKS,
            images=images,
            augmented=augmented,
        )
        for images in (len(study.data), fewer)
        for augmented in (True, False)
    }
    base, _, less, both = arms.values()
    study.report(arms, f"The thesis does not say how much less data; here {fewer:,} images, for as many epochs.")
    shown = {name: arm.lines for name, arm in arms.items()}
    draw(run, "lines", shown, "Test loss while one block, or all, move.", yscale="log")
    few = f"{fewer:,} images"
    return [
        greater(f"{few} without augmentation are less accurate than with it, %", "further reduces", less.accuracy,
                both.accuracy),
        greater(f"{few} without augmentation have lower barriers of blocks than with it", "further reduces",
                less.highest(), both.highest(), by="median"),
        greater(f"{few} without augmentation have lower barriers of blocks than the base", "reduces", base.highest(),
                both.highest(), by="median"),
    ]  # fmt: skip
