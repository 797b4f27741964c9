"""Thesis Fig. 6.9: a smaller step for the blocks with barriers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Run
from ..setups.cifar.study import BLOCKS, CI, LARGE, PAPER, SMOKE, Arm, Study, as_published, barrier_blocks, barrier_note
from ..setups.shared.loss_lines import draw


@experiment(
    "fig6.9",
    title="ResNet-18 on CIFAR-10 with a smaller step for blocks with barriers",
    source="thesis Fig. 6.9, 6.16A",
    says="Starting with h = 0.01 instead of 0.1 for the blocks that have barriers (2, 3 and 4.0) removes these "
    "barriers, and lowers the test accuracy from 92.2 to 90.1 %.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci={**CI, "epochs": 8},
    large=LARGE,
    paper=PAPER,
)
def fig6_9(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    base = study.arm("0.1 for all", blocks=BLOCKS)
    high, found = barrier_blocks(base)
    careful = study.arm(
        "0.01 with barriers", blocks=BLOCKS, special_blocks=tuple(str(BLOCKS[name]) for name in high), special_step=0.01
    )
    arms = {arm.arm: arm for arm in (base, careful)}
    study.report(arms, barrier_note(high, found))
    draw(
        run,
        "lines",
        {name: arm.lines for name, arm in arms.items()},
        "Test loss while one block, or all, move.",
        yscale="log",
    )
    return [
        greater(
            "barriers of these blocks are lower",
            "removed",
            base.mean_height(high),
            careful.mean_height(high),
            by="median",
        ),
        greater("fewer of these blocks have barriers", "none", _share(base, high), _share(careful, high)),
        greater("lower accuracy, %", "92.2 against 90.1", base.accuracy, careful.accuracy),
        *as_published(careful, "test accuracy with the smaller step, %", "90.1 %", careful.accuracy, 90.1, 1.0),
    ]


def _share(arm: Arm, blocks: tuple[str, ...]) -> Array:
    share: Array = np.mean([arm.blocks[name].barriers() for name in blocks], 0)
    return share
