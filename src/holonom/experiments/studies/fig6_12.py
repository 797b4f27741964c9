"""Thesis Fig. 6.12 and Table 6.3: training from the top of the barrier, and from before and after it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater, some
from ..run import Run
from ..setups.cifar.recipes import Recipe, Start
from ..setups.cifar.study import CI, LARGE, PAPER, SMOKE, Arm, Study, as_published
from ..setups.shared.loss_lines import Line, draw, mostly_none
from .fig6_3 import tops

# Test accuracy in per cent (Table 6.3), and by how far the start lies from the barrier's top: 5 of 50 intervals.
SCRATCH = 90.01
STARTS = {"before the barrier": (-0.1, 91.05), "from the barrier": (0.0, 91.12), "after the barrier": (0.1, 90.85)}


@experiment(
    "fig6.12",
    title="ResNet-18 on CIFAR-10 from the top of its barrier, before it and after it",
    source="thesis Fig. 6.12, Table 6.3",
    says="Without weight decay, training from the line's state at the top of its barrier, five of fifty intervals "
    "before it or five after it ends at a test accuracy of 91.12, 91.05 and 90.85 % instead of 90.01 % from scratch, "
    "and typically meets no barrier.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci={**CI, "epochs": 6},
    large={**LARGE, "points": 51},
    paper={**PAPER, "points": 51},
)
def fig6_12(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    scratch = study.arm("from scratch", weight_decay=0.0)
    arms = {name: beside(study, scratch, name, offset) for name, (offset, _) in STARTS.items()}
    crossing = scratch.whole.barriers() == 1
    study.report(
        {arm.arm: arm for arm in (scratch, *arms.values())},
        f"{crossing.sum()} of {run.replicas} runs cross a barrier; the claims are about them, as in the thesis, or "
        "about all if there are none, from the highest point inside their line. Starts beyond an end are at the end.",
    )
    shown = {"no weight decay": {arm.arm: arm.whole for arm in (scratch, *arms.values())}}
    draw(run, "lines", shown, "Test loss from initial to trained weights, without weight decay.")
    selected = crossing if crossing.any() else np.ones_like(crossing)
    claims = [some("some runs cross a barrier", "some seeds", scratch.whole.barriers())]
    for name, arm in arms.items():
        published = STARTS[name][1]
        better, base = arm.accuracy[selected], scratch.accuracy[selected]
        line = Line(arm.whole.alphas, arm.whole.values[selected])
        claims += [
            greater(f"{name}: higher test accuracy than from scratch, %", f"{published} against {SCRATCH}", better,
                    base),
            mostly_none(f"{name}: the line falls", "typically monotone", line),
            *as_published(arm, f"{name}: test accuracy, %", f"{published} %", better, published, 1.0),
        ]  # fmt: skip
    return claims


def beside(study: Study, scratch: Arm, name: str, offset: float) -> Arm:
    """Trained from the line's state at an offset from the barrier's top."""
    places = np.clip(tops(scratch.whole) + offset, 0.0, 1.0)

    def begin(number: int, recipe: Recipe) -> Start:
        return Start(scratch.recipe.seeded(recipe.seed), float(places[number]))

    return study.arm(name, scratch.recipe, start_of=begin)
