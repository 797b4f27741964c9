"""Thesis Fig. 6.2B: training from weights that have memorised random labels."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater, near
from ..run import Run
from ..setups.cifar.recipes import Recipe, Start
from ..setups.cifar.study import CI, LARGE, PAPER, SMOKE, Study, as_published
from ..setups.shared.loss_lines import draw

FITTED = 0.999  # training accuracy at which labels count as memorised


def memorised(study: Study, epochs: int) -> Recipe:
    """Without weight decay and augmentation, on random labels, until they are fitted."""
    return replace(
        study.base, weight_decay=0.0, augmented=False, random_labels=True, epochs=epochs, stop_accuracy=FITTED
    )


@experiment(
    "fig6.2B",
    title="ResNet-18 on CIFAR-10 from weights that fit random labels",
    source="thesis Fig. 6.2B",
    says="Trained without weight decay from weights that fit random labels to 100 %, a ResNet-18 crosses a higher "
    "barrier on its line than one trained from scratch, and its test accuracy is lower (from scratch: 90.0 %).",
    data=("cifar-10",),
    smoke={**SMOKE, "random_epochs": 1},
    ci={**CI, "random_epochs": 20},
    large={**LARGE, "random_epochs": 60},
    paper={**PAPER, "random_epochs": 200},
)
def fig6_2b(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    first = memorised(study, settings.random_epochs)
    arms = {
        "random labels": study.arm("random labels", first),
        "from scratch": study.arm("from scratch", weight_decay=0.0),
        "from random labels": study.arm("from random labels", weight_decay=0.0, start=Start(first)),
    }
    fooled, scratch = arms["from random labels"], arms["from scratch"]
    study.report(
        arms,
        f"Random labels are learned without augmentation and weight decay, for at most {settings.random_epochs} "
        f"epochs, until {100 * FITTED:g} % of an epoch's images are met with the right answer; h as for the base.",
    )
    shown = {"no weight decay": {name: arms[name].whole for name in ("from scratch", "from random labels")}}
    draw(run, "lines", shown, "Test loss from initial to trained weights, without weight decay.")
    return [
        near("random labels are fitted", "100 %", arms["random labels"].final("train_accuracy"), 1.0, 0.01),
        greater(
            "higher barrier from random labels", "higher", fooled.whole.heights(), scratch.whole.heights(), by="median"
        ),
        greater("lower accuracy from random labels, %", "lower", scratch.accuracy, fooled.accuracy),
        *as_published(scratch, "test accuracy from scratch, %", "90.0 %", scratch.accuracy, 90.01, 1.0),
    ]
