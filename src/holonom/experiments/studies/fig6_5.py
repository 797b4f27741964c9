"""Thesis Fig. 6.5: one block starts from weights that fit random labels, the others from fresh ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.cifar.recipes import Start
from ..setups.cifar.study import CI, LARGE, PAPER, SMOKE, STAGES, Arm, Study
from ..setups.shared.loss_lines import draw, mostly_barrier, mostly_none
from .fig6_2B import memorised

FIRST, LAST = ("B1", "B2"), "B4"
ADVERSARIAL = (*FIRST, "B3", LAST)


def adversarial(study: Study, block: str, decay: float) -> Arm:
    """A block of a network that has memorised random labels; all others as that network started."""
    others = tuple(str(pattern) for name, pattern in STAGES.items() if name != block)
    start = Start(memorised(study, study.settings.random_epochs), reset=others)
    return study.arm(f"{block} adversarial, {decayed(decay)}", weight_decay=decay, start=start)


def decayed(decay: float) -> str:
    return f"weight decay {decay:g}" if decay else "no weight decay"


def arms_at(study: Study, decay: float) -> dict[str, Arm]:
    """From scratch, and with one block adversarial."""
    scratch = study.arm(f"from scratch, {decayed(decay)}", weight_decay=decay)
    return {"from scratch": scratch, **{block: adversarial(study, block, decay) for block in ADVERSARIAL}}


def claims_at(arms: dict[str, Arm], decay: float) -> list[Claim]:
    what, scratch = decayed(decay), arms["from scratch"]
    first = np.mean([arms[block].accuracy for block in FIRST], 0)
    return [
        greater(f"{what}: adversarial first blocks lower the accuracy, mean of B1 and B2, %", "lower", scratch.accuracy,
                first),
        greater(f"{what}: adversarial B4 raises the accuracy, %", "slightly higher", arms[LAST].accuracy,
                scratch.accuracy),
        mostly_none(f"{what}: adversarial B4: the line falls", "monotone decay", arms[LAST].whole),
    ]  # fmt: skip


@experiment(
    "fig6.5",
    title="ResNet-18 on CIFAR-10 with one block from random labels",
    source="thesis Fig. 6.5",
    says="Without weight decay: a ResNet-18 of which one of the first blocks starts from weights that fit random "
    "labels ends with a lower test accuracy, one with an adversarial block 4 with a slightly higher one than from "
    "scratch. With block 4 the line falls monotonically, with the others it has barriers.",
    data=("cifar-10",),
    smoke={**SMOKE, "random_epochs": 1},
    ci={**CI, "random_epochs": 20},
    large={**LARGE, "random_epochs": 60},
    paper={**PAPER, "random_epochs": 200},
)
def fig6_5(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    arms = arms_at(study, 0.0)
    study.report({arm.arm: arm for arm in arms.values()}, note(settings.random_epochs))
    shown = {"no weight decay": {name: arm.whole for name, arm in arms.items()}}
    draw(run, "lines", shown, "Test loss of the whole network's line, by the block that was adversarial.")
    others = [mostly_barrier(f"adversarial {block}: a barrier", "barriers", arms[block].whole)
              for block in ADVERSARIAL if block != LAST]  # fmt: skip
    return [*claims_at(arms, 0.0), *others]


def note(epochs: int) -> str:
    return (
        f"The adversarial block comes from a network that fitted random labels (at most {epochs} epochs, without "
        "augmentation and weight decay) from the same initial weights; all other blocks have those initial weights."
    )
