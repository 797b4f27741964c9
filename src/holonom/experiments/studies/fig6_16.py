"""Thesis Fig. 6.16B: a smaller step for the layers of VGG-11 with barriers. (6.16A is Fig. 6.9.)"""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.cifar.study import (
    CI,
    LARGE,
    PAPER,
    SMOKE,
    Study,
    as_published,
    barrier_blocks,
    barrier_note,
    patterns_of,
    vgg_layers,
)
from ..setups.shared.loss_lines import draw
from .fig6_19 import WITH_BARRIERS, vgg


@experiment(
    "fig6.16",
    title="VGG-11 on CIFAR-10 with a smaller step for layers with barriers",
    source="thesis Fig. 6.16B, Table 6.2",
    says="Starting with h = 0.01 instead of 0.1 for the layers of a VGG-11 that have barriers (4 to 10) can remove "
    "these barriers, and lowers the test accuracy from 91.9 to 90.4 %.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci=CI,
    large=LARGE,
    paper=PAPER,
)
def fig6_16(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    base = vgg(study, "0.1 for all")
    high, found = barrier_blocks(base, WITH_BARRIERS)
    layers = vgg_layers(base.recipe)
    careful = study.arm(
        "0.01 with barriers", base.recipe, layers, special_blocks=patterns_of(layers, high), special_step=0.01
    )
    arms = {arm.arm: arm for arm in (base, careful)}
    study.report(arms, barrier_note(high, found, "VGG-11"))
    shown = {name: arm.lines for name, arm in arms.items()}
    draw(run, "lines", shown, "Test loss while one layer, or all, move.", yscale="log")
    before, after = base.mean_height(high), careful.mean_height(high)
    return [
        greater("barriers of these layers are lower", "removed", before, after, by="median"),
        greater("lower accuracy, %", "91.9 against 90.4", base.accuracy, careful.accuracy),
        *as_published(careful, "test accuracy with the smaller step, %", "90.4 %", careful.accuracy, 90.4, 1.0),
    ]
