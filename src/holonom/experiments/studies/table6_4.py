"""Thesis Table 6.4: which layers of VGG-11 can be narrowed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.cifar.study import CI, LARGE, PAPER, SMOKE, Arm, Study, as_published, barrier_blocks, barrier_note
from ..setups.shared.loss_lines import draw
from .fig6_19 import WITH_BARRIERS, vgg

STANDARD, OTHERS, ONE, TWO, ALL = (
    "standard", "no-barrier layers", "1 barrier layer", "2 barrier layers", "all barrier layers"
)  # fmt: skip
PUBLISHED = {STANDARD: 91.93, OTHERS: 91.73, ONE: 91.53, TWO: 91.25, ALL: 91.15}  # test accuracies in per cent
OUTPUT = 11  # its width is the number of classes, and cannot be halved


@experiment(
    "table6.4",
    title="VGG-11 on CIFAR-10 with some layers half as wide",
    source="thesis Table 6.4",
    says="Halving the layers of VGG-11 without barriers costs little test accuracy (91.73 against 91.93 %); halving "
    "one layer with a barrier costs more (91.53 %), two (91.25 %) and all of them (91.15 %) still more.",
    data=("cifar-10",),
    smoke={**SMOKE, "width": 4},
    ci=CI,
    large=LARGE,
    paper=PAPER,
)
def table6_4(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    standard = vgg(study, STANDARD)
    standard.blocks.pop(f"layer {OUTPUT}")
    high, found = barrier_blocks(standard, WITH_BARRIERS)
    tallest = sorted(high, key=lambda name: -float(np.nanmean(standard.blocks[name].heights())))
    with_barriers = _numbers(high)
    narrowed = {
        OTHERS: tuple(i for i in range(1, OUTPUT) if i not in with_barriers),
        ONE: _numbers(tallest[:1]),
        TWO: _numbers(tallest[:2]),
        ALL: with_barriers,
    }
    arms = {STANDARD: standard}
    arms |= {name: study.arm(name, standard.recipe, narrowed=layers) for name, layers in narrowed.items()}
    _table(run, arms, narrowed)
    study.report(
        arms,
        barrier_note(high, found, "VGG-11"),
        f"The thesis does not name its one and two layers; here {', '.join(tallest[:2])}, with the highest barriers.",
    )
    draw(run, "lines", {"standard": standard.lines}, "Test loss while one layer, or all, move.", yscale="log")
    accuracy = {name: arm.accuracy for name, arm in arms.items()}
    lost = {name: accuracy[STANDARD] - accuracy[name] for name in narrowed}
    return [
        greater("one barrier layer costs more than all others, %", "0.40 against 0.20", lost[ONE], lost[OTHERS]),
        greater("all barrier layers cost more than all others, %", "0.78 against 0.20", lost[ALL], lost[OTHERS]),
        greater("all barrier layers cost more than one, %", "0.78 against 0.40", lost[ALL], lost[ONE]),
        *(
            claim
            for name, value in PUBLISHED.items()
            for claim in as_published(arms[name], f"{name}: test accuracy, %", f"{value} %", accuracy[name], value, 1.0)
        ),
    ]


def _numbers(layers: tuple[str, ...] | list[str]) -> tuple[int, ...]:
    return tuple(sorted(int(name.split()[-1]) for name in layers))


def _table(run: Run, arms: dict[str, Arm], narrowed: dict[str, tuple[int, ...]]) -> None:
    rows = [
        [name, ", ".join(map(str, narrowed.get(name, ()))) or "–", PUBLISHED[name], f"{arm.accuracy.mean():.2f}",
         ", ".join(f"{x:.2f}" for x in arm.accuracy)]
        for name, arm in arms.items()
    ]  # fmt: skip
    run.table("Narrowed layers and test accuracy, %", ["narrowed", "layers", "published", "here", "runs"], rows)
