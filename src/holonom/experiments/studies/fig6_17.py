"""Thesis Fig. 6.17: which layers of a deep perceptron cross barriers, and how width removes them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np

from ...data import spirals
from ..base import experiment
from ..claims import Claim, greater, near
from ..run import Array, Fit, Run
from ..setups.perceptrons.tasks import by_layer, line, on_spirals
from ..setups.planar.methods import adam
from ..setups.shared.curves import HEADINGS
from ..setups.shared.loss_lines import Line, mostly_barrier, mostly_none, table
from ..setups.shared.loss_lines import draw as draw_lines

EARLY = 4  # layers that the thesis finds to have barriers
STEP, POINTS = 1e-3, 1000
WHOLE = "whole network"


def _mean_height(lines: dict[str, Line], layers: range) -> Array:
    """(runs,) mean barrier height of some layers."""
    mean: Array = np.mean([lines[f"layer {i}"].heights() for i in layers], 0)
    return mean


@experiment(
    "fig6.17",
    title="Barriers layer by layer in a perceptron with six hidden layers",
    source="thesis Fig. 6.17",
    says="Trained on a spiral to 100 % test accuracy, a perceptron with six hidden layers of 50 nodes has barriers in "
    "its early layers (1–4) and monotone decay in the later ones. 500 nodes in all layers, or 500 in the layers with "
    "barriers and 25 in the others, remove the barrier of the whole network.",
    smoke={"replicas": 2, "steps": 4, "turns": (2, 4), "wide": 60, "points": 11},
    ci={"replicas": 4, "steps": 2000, "turns": (2, 4), "wide": 120, "points": 31},
    paper={"replicas": 10, "steps": 20_000, "turns": (2, 4), "wide": 500, "points": 51},
)
def fig6_17(run: Run, settings: SimpleNamespace) -> list[Claim]:
    wide = settings.wide
    widths = {"50": (50,) * 6, f"{wide}": (wide,) * 6, f"{wide} and 25": (wide,) * EARLY + (25,) * (6 - EARLY)}
    fits: dict[str, Fit] = {}
    claims = []
    for turns in settings.turns:
        draw = partial(spirals, turns=turns, scale=2.0, noise=0.02)
        lines = {}
        for name, hidden in widths.items():
            task = on_spirals(run, f"{turns} turns, {name} nodes", draw, hidden, POINTS)
            fit = fits[task.name] = task.fit("Adam", adam(STEP), settings.steps)
            start = task.ensemble()
            whole = line(task, start, fit.ensemble, settings.points)
            lines[name] = {WHOLE: whole, **by_layer(task, start, fit.ensemble, settings.points)}
        for name, layer_lines in lines.items():
            table(run, layer_lines, f"Barriers on the spiral of {turns} turns with {name} nodes in the hidden layers")
        caption = f"Spiral of {turns} turns: test loss while one layer, or all, move from initial to trained weights."
        panels = {f"{turns} turns, {name} nodes": layer_lines for name, layer_lines in lines.items()}
        draw_lines(run, f"layers-{turns}-turns", panels, caption)
        claims += _claims(f"{turns} turns", *lines.values())
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    run.note(
        f"Not in the thesis, and chosen here: spirals of earlier chapters, {POINTS} + {POINTS} points, 5 % batches, "
        "Adam at h = 0.001. Six hidden layers have seven layers of weights, so the thesis's layers 5–8 are 5–7 here; "
        f"wide layers have {wide} nodes."
    )
    lowest = np.min([fit.final("test_accuracy") for fit in fits.values()], 0)  # of the networks with one seed
    return [near("all reach full test accuracy: the lowest", "100 %", lowest, 1.0, 0.02), *claims]


def _claims(spiral: str, narrow: dict[str, Line], broad: dict[str, Line], mixed: dict[str, Line]) -> list[Claim]:
    layers = len(narrow) - 1
    early = _mean_height(narrow, range(1, EARLY + 1))
    late = _mean_height(narrow, range(EARLY + 1, layers + 1))
    return [
        mostly_barrier(f"{spiral}, 50 nodes: the whole network crosses a barrier", "removed by width", narrow[WHOLE]),
        greater(
            f"{spiral}, 50 nodes: early layers have higher barriers", "in layers 1–4 only", early, late, by="median"
        ),
        mostly_none(f"{spiral}, 50 nodes: the last layer only falls", "monotone decay", narrow[f"layer {layers}"]),
        greater(
            f"{spiral}: the wide network's barrier is lower",
            "removed",
            narrow[WHOLE].heights(),
            broad[WHOLE].heights(),
            by="median",
        ),
        mostly_none(f"{spiral}: the wide network has no barrier", "removed", broad[WHOLE]),
        mostly_none(f"{spiral}: wide early, narrow late layers: no barrier", "removed", mixed[WHOLE]),
    ]
