"""Thesis Fig. 6.3: training from the top of the barrier."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater, some
from ..run import Array, Run
from ..setups.cifar.recipes import Recipe, Start
from ..setups.cifar.study import CI, LARGE, PAPER, SMOKE, Arm, Study, as_published
from ..setups.shared.loss_lines import Line, draw, mostly


def tops(line: Line) -> Array:
    """(runs,) α of the barrier's top; of the highest point between the ends where there is no barrier."""
    inside = np.where(np.isfinite(line.values[:, 1:-1]), line.values[:, 1:-1], -np.inf)
    places: Array = np.where(line.barriers() == 1, line.places(), line.alphas[1 + inside.argmax(1)])
    return places


def from_top(study: Study, scratch: Arm) -> Arm:
    places = tops(scratch.whole)

    def begin(number: int, recipe: Recipe) -> Start:
        return Start(scratch.recipe.seeded(recipe.seed), float(places[number]))

    return study.arm("from the barrier", scratch.recipe, start_of=begin)


@experiment(
    "fig6.3",
    title="ResNet-18 on CIFAR-10 from the top of its barrier",
    source="thesis Fig. 6.3, Table 6.3",
    says="Without weight decay some runs of a ResNet-18 cross a barrier. Training from its top, a state with a higher "
    "loss than the initial one, meets no barrier, is faster, and ends at a test accuracy of 91.12 instead of 90.01 %.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci={**CI, "epochs": 8},
    large=LARGE,
    paper=PAPER,
)
def fig6_3(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    scratch = study.arm("from scratch", weight_decay=0.0)
    top = from_top(study, scratch)
    arms = {arm.arm: arm for arm in (scratch, top)}
    crossing = scratch.whole.barriers() == 1
    places = ", ".join(f"{place:.2g}" for place in tops(scratch.whole))
    study.report(
        arms,
        f"{crossing.sum()} of {run.replicas} runs cross a barrier; the claims are about them, as in the thesis, or "
        f"about all if there are none. Every run started again from its barrier's top, or else from the highest point "
        f"inside its line, α = {places}.",
    )
    shown = {"no weight decay": {arm.arm: arm.whole for arm in arms.values()}}
    draw(run, "lines", shown, "Test loss from initial to trained weights, without weight decay.")
    for metric, heading in (("train_loss", "training loss"), ("test_accuracy", "test accuracy")):
        run.curves(arms, metric, heading, f"{heading.capitalize()} of each epoch.", scratch.recipe.per_epoch)
    selected = crossing if crossing.any() else np.ones_like(crossing)
    return [
        some("some runs cross a barrier", "some seeds", scratch.whole.barriers()),
        *_claims(top, scratch, selected),
    ]


def _claims(top: Arm, scratch: Arm, selected: Array) -> list[Claim]:
    """About the chosen runs."""
    from_top, from_scratch = (Line(arm.whole.alphas, arm.whole.values[selected]) for arm in (top, scratch))
    higher, lower = (arm.accuracy[selected] for arm in (top, scratch))
    slow, fast = (arm.curves["train_loss"].mean(0)[selected] for arm in (scratch, top))
    return [
        greater("the top's loss is above the initial one", "higher", from_top.values[:, 0], from_scratch.values[:, 0]),
        mostly("the line falls from the top", "monotone", from_top, "no barrier"),
        greater("faster training: mean loss over the epochs", "faster", slow, fast, diverged=math.inf),
        greater("higher test accuracy from the top, %", "91.12 against 90.01", higher, lower),
        *as_published(top, "test accuracy from the top, %", "91.12 %", higher, 91.12, 1.0),
    ]
