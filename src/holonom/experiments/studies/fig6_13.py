"""Thesis Fig. 6.13: one adversarial block, with three amounts of weight decay."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim
from ..run import Run
from ..setups.cifar.study import CI, LARGE, PAPER, SMOKE, Study
from ..setups.shared.loss_lines import draw, mostly
from .fig6_5 import ADVERSARIAL, LAST, arms_at, claims_at, decayed, note

DECAYS = (0.0, 1e-4, 5e-4)


@experiment(
    "fig6.13",
    title="ResNet-18 on CIFAR-10 with one block from random labels and weight decay",
    source="thesis Fig. 6.13",
    says="What Fig. 6.5 shows without weight decay is seen with 1e-4 and 5e-4 too: adversarial first blocks lower the "
    "test accuracy, an adversarial block 4 does not. At 5e-4 the line with an adversarial block 4 has a barrier, the "
    "others a plateau.",
    data=("cifar-10",),
    smoke={**SMOKE, "random_epochs": 1},
    ci={**CI, "train": 1000, "epochs": 2, "random_epochs": 10},
    large={**LARGE, "random_epochs": 60},
    paper={**PAPER, "random_epochs": 200},
)
def fig6_13(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    by_decay = {decay: arms_at(study, decay) for decay in DECAYS}
    study.report({arm.arm: arm for arms in by_decay.values() for arm in arms.values()}, note(settings.random_epochs))
    panels = {decayed(decay): {name: arm.whole for name, arm in arms.items()} for decay, arms in by_decay.items()}
    draw(run, "lines", panels, "Test loss of the whole network, by the block that was adversarial.")
    claims = [claim for decay, arms in by_decay.items() for claim in claims_at(arms, decay)[:2]]
    most = by_decay[max(DECAYS)]
    return [
        *claims,
        mostly(f"{decayed(max(DECAYS))}: adversarial B4: a barrier", "a barrier", most[LAST].whole, "barrier"),
        *(
            mostly(f"{decayed(max(DECAYS))}: adversarial {block}: a plateau", "plateau", most[block].whole, "plateau")
            for block in ADVERSARIAL
            if block != LAST
        ),
    ]
