"""Thesis Fig. 6.1B: a ResNet-18's line is a plateau, its blocks' lines have barriers or fall."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, most
from ..run import Run
from ..setups.cifar.study import BLOCKS, CI, LARGE, PAPER, SMOKE, Study, as_published
from ..setups.shared.loss_lines import draw, mostly, mostly_none


@experiment(
    "fig6.1B",
    title="ResNet-18 on CIFAR-10: lines of the whole network and of its blocks",
    source="thesis Fig. 6.1B, 6.11",
    says="From initial to trained weights the test loss of a ResNet-18 (92.2 % test accuracy, 10 runs) stays flat "
    "until close to the end. Blocks that move alone behave differently from it and from each other: some cross "
    "barriers, others fall monotonically.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci={**CI, "epochs": 8},
    large=LARGE,
    paper=PAPER,
)
def fig6_1b(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    arm = study.arm("base", blocks=BLOCKS)
    study.report({"base": arm})
    draw(
        run,
        "lines",
        {"ResNet-18": arm.lines},
        "Test loss while one block, or all, move from initial to trained.",
        yscale="log",
    )
    shapes = np.stack([one.barriers() for one in arm.blocks.values()])
    varied = np.where(np.isfinite(shapes).all(0), shapes.min(0) < shapes.max(0), np.nan)
    return [
        mostly("the whole network's line is a plateau", "plateau, then a drop", arm.whole, "plateau"),
        most("some block has a barrier", "B2, B3 and B4.0", arm.crossing()),
        most("some blocks have barriers, others have not", "a variety of behaviours", varied),
        mostly_none("the last layer only falls", "monotone decay", arm.blocks["fc"]),
        *as_published(arm, "test accuracy, %", "92.2 %", arm.accuracy, 92.2, 1.0),
    ]
