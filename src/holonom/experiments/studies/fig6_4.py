"""Thesis Fig. 6.4, right: a trained network with one block reset, trained again."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, best, greater, some
from ..run import Run
from ..setups.cifar.recipes import Start
from ..setups.cifar.study import CI, LARGE, PAPER, SMOKE, STAGES, Arm, Study, as_published
from ..setups.shared.loss_lines import draw

PUBLISHED = {"B1": 91.79, "B2": 91.83, "B3": 92.35, "B4": 90.97}  # test accuracies in per cent


def forgetful(study: Study, block: str) -> Arm:
    """Train as usual from a trained network with one block reset."""
    pattern = STAGES[block]
    assert isinstance(pattern, str)
    return study.arm(f"{block} forgotten", start=Start(study.base, reset=(pattern,)))


@experiment(
    "fig6.4",
    title="ResNet-18 on CIFAR-10: trained, one block forgotten, trained again",
    source="thesis Fig. 6.4 (trained states)",
    says="A trained ResNet-18 of which one block is put back to its random initial state and which trains again as "
    "usual often ends with less test accuracy than one trained from scratch (92.2 %): 91.79, 91.83, 92.35 and 90.97 % "
    "for blocks 1 to 4. Some of these trainings cross barriers on their line.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci=CI,
    large=LARGE,
    paper=PAPER,
)
def fig6_4(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    scratch = study.arm("from scratch")
    partial = {block: forgetful(study, block) for block in PUBLISHED}
    arms = {arm.arm: arm for arm in (scratch, *partial.values())}
    study.report(
        arms,
        "Training as usual is taken to mean h = 0.1 at first, as from scratch. States pre-trained on ImageNet are left "
        "out: that set is not among the data.",
    )
    shown = {"one block forgotten": {name: arm.whole for name, arm in arms.items()}}
    draw(run, "lines", shown, "Test loss of the whole network between the partly trained and the final weights.")
    crossing = np.max([arm.whole.barriers() for arm in partial.values()], 0)
    mean = np.mean([arm.accuracy for arm in partial.values()], 0)
    return [
        greater("less accurate than from scratch, mean over blocks, %", "often lower", scratch.accuracy, mean),
        best("forgetting B4 costs most, %", "90.97 %", {b: a.accuracy for b, a in partial.items()}, "B4", lowest=True),
        some("in some runs one of these lines has a barrier", "sometimes", crossing),
        *(
            claim
            for block, value in PUBLISHED.items()
            for claim in as_published(
                partial[block],
                f"test accuracy, {block} forgotten, %",
                f"{value} %",
                partial[block].accuracy,
                value,
                1.0,
            )
        ),
    ]
