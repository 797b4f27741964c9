"""Thesis Fig. 6.8: constant steps, and the distance travelled."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, best, greater
from ..run import Run
from ..setups.cifar.study import CI, LARGE, PAPER, SMOKE, Arm, Study, as_published
from ..setups.shared.loss_lines import draw, mostly

DISTANCES = {0.1: 1.03, 0.01: 0.88, 0.001: 0.22}  # published, by h (6.3)


def fixed(study: Study, step: float) -> Arm:
    return study.arm(f"fixed h = {step:g}", step=step, step_decay=False)


@experiment(
    "fig6.8",
    title="ResNet-18 on CIFAR-10 with a fixed step",
    source="thesis Fig. 6.8, section 6.1.10.5",
    says="At a fixed h of 0.1 or 0.001 the line falls monotonically, at 0.01 it does not; yet 0.01 reaches the highest "
    "test accuracy. The way travelled, ‖θ_f − θ_i‖/‖θ_i‖, grows with h: 0.22, 0.88 and 1.03.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci=CI,
    large=LARGE,
    paper=PAPER,
)
def fig6_8(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    arms = {step: fixed(study, step) for step in DISTANCES}
    study.report({arm.arm: arm for arm in arms.values()})
    run.table(
        "Distance travelled (6.3)",
        ["h", "published", "mean", "lowest", "highest"],
        [
            [f"{step:g}", DISTANCES[step], *(f"{f(arm.distance):.3g}" for f in (np.nanmean, np.nanmin, np.nanmax))]
            for step, arm in arms.items()
        ],
    )
    shown = {"fixed step": {arm.arm: arm.whole for arm in arms.values()}}
    draw(run, "lines", shown, "Test loss from initial to trained weights.")
    accuracies = {f"{step:g}": arm.accuracy for step, arm in arms.items()}
    return [
        best("h = 0.01 is the most accurate, %", "0.01", accuracies, "0.01"),
        mostly("h = 0.01: the line does not fall monotonically", "it does not", arms[0.01].whole, "barrier", "plateau"),
        mostly("h = 0.1: the line falls", "monotone decay", arms[0.1].whole, "no barrier"),
        mostly("h = 0.001: the line falls", "monotone decay", arms[0.001].whole, "no barrier"),
        greater("0.1 travels farther than 0.01", "1.03 against 0.88", arms[0.1].distance, arms[0.01].distance),
        greater("0.01 travels farther than 0.001", "0.88 against 0.22", arms[0.01].distance, arms[0.001].distance),
        *(
            claim
            for step, way in DISTANCES.items()
            for claim in as_published(
                arms[step], f"h = {step:g}: distance travelled", f"{way}", arms[step].distance, way, 0.1
            )
        ),
    ]
