"""Thesis Fig. 6.18: which parameters of a block make its barrier."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ...landscape import blocks_of
from ..base import experiment
from ..claims import Claim, best
from ..run import Array, Run
from ..setups.cifar.networks import untrained
from ..setups.cifar.recipes import Recipe
from ..setups.cifar.study import CI, LARGE, PAPER, SMOKE, Arm, Study
from ..setups.shared.loss_lines import draw

BLOCK, FULL, STATISTICS = "stages.2", "whole block", "running mean and variance"


def groups(recipe: Recipe) -> dict[str, list[str]]:
    """The third block's tensors: all, kernels, the norms' weights and biases, and their running statistics."""
    model = untrained(recipe)
    names = blocks_of(model, [BLOCK])[BLOCK]
    kernels = {name for name, p in model.named_parameters() if p.ndim == 4}
    norms = {name for name, p in model.named_parameters() if p.ndim == 1}
    return {
        FULL: names,
        "convolutions": [name for name in names if name in kernels],
        "norm weights and biases": [name for name in names if name in norms],
        STATISTICS: [name for name in names if "running_" in name],
    }


@experiment(
    "fig6.18",
    title="ResNet-18 on CIFAR-10: lines of a block's groups of parameters",
    source="thesis Fig. 6.18",
    says="All of a trained ResNet-18 stays fixed but groups of parameters in its third block. The line of batch norm's "
    "running mean and variance behaves like that of the full block; those of the convolutions and of the norm's "
    "weights and biases do not.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci={**CI, "epochs": 8},
    large=LARGE,
    paper=PAPER,
)
def fig6_18(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    arm = study.arm("base", blocks=groups(study.base))
    study.report({"base": arm}, "How alike two lines are: the root mean square of their difference over α.")
    draw(
        run,
        "lines",
        {"third block": arm.blocks},
        "Test loss while a group of the third block's parameters moves.",
        yscale="log",
    )
    differences = {name: _difference(arm, name) for name in arm.blocks if name != FULL}
    heights = {name: -np.abs(arm.blocks[name].heights() - arm.blocks[FULL].heights()) for name in differences}
    return [
        best(
            "the running statistics' line is most like the block's", "governed by them", differences, STATISTICS, True
        ),
        best("and so is the height of its barrier", "governed by them", heights, STATISTICS),
    ]


def _difference(arm: Arm, name: str) -> Array:
    """(runs,) root mean square difference of a group's line from the full block's."""
    squared = (arm.blocks[name].values - arm.blocks[FULL].values) ** 2
    root: Array = np.sqrt(squared.mean(1))
    return root
