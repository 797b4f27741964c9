"""Paper Fig. 1: classifiers of a noisy spiral, trained with and without circle constraints, weight decay and noise."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

from ..base import experiment
from ..claims import Claim, greater
from ..run import Fit, Run
from ..setups.planar.decision_boundaries import draw, probabilities
from ..setups.planar.spiral_circle import METHODS, PER_EPOCH, data, fit
from ..setups.shared.curves import HEADINGS

CORNERS = (-1.25, -1.25), (1.25, 1.25)  # of the figure


@experiment(
    "fig1",
    title="Decision boundaries on the noisy spiral",
    source="paper Fig. 1, thesis Fig. 4.1",
    says="After 10,000 epochs constraints with additive noise (C-SGLD) classify 91.7 % of the test points, SGD 81 %; "
    "weight decay keeps SGD's test loss from rising but does not improve its accuracy, and the constrained methods' "
    "test loss stays low throughout training.",
    smoke={"replicas": 2, "epochs": 1, "grid": 60},
    ci={"replicas": 8, "epochs": 1000, "grid": 250},
    paper={"replicas": 10, "epochs": 10_000, "grid": 400},
)
def fig1(run: Run, settings: SimpleNamespace) -> list[Claim]:
    sets = data(run)
    fits = {name: fit(run, name, sets, settings.epochs) for name in METHODS}
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    picture(run, fits, sets, settings.grid)
    run.note(
        "The paper shows one run. The picture shows the first of ours; the claims are about all of them, each with its "
        "own data, initial weights, order and noise, which the methods share."
    )
    if settings.epochs < 10_000:
        run.note(
            f"The paper trains for 10,000 epochs, this run for {settings.epochs:,}: too few for SGD to overfit as much."
        )
    accuracy = {name: one.final("test_accuracy") for name, one in fits.items()}
    loss = {name: one.final("test_loss") for name, one in fits.items()}
    rise = {name: one.final("test_loss") - one.curves["test_loss"].min(0) for name, one in fits.items()}
    return [
        greater("C-SGLD is more accurate than SGD", "91.7 % against 81 %", accuracy["C-SGLD"], accuracy["SGD"]),
        greater(
            "C-SGLD's test loss is below SGD's", "stable against rising", loss["SGD"], loss["C-SGLD"],
            diverged=math.inf,
        ),
        greater(
            "SGD's test loss has risen more than C-SGLD's", "rising against stable", rise["SGD"], rise["C-SGLD"],
            diverged=math.inf,
        ),
        greater("weight decay lowers SGD's test loss", "stabilised", loss["SGD"], loss["SGD+WD"], diverged=math.inf),
        greater("C-SGD is more accurate than SGD+WD", "improved", accuracy["C-SGD"], accuracy["SGD+WD"]),
    ]  # fmt: skip


def picture(run: Run, fits: dict[str, Fit], sets: list[Tensor], grid: int) -> None:
    """A column for each method: training points, test points, loss curves."""
    x, y, x_test, y_test = (part[0] for part in sets)
    caption = (
        "Decision boundaries of the first run over its training points (top) and test points (middle); below, loss: "
        "mean and range over runs."
    )
    top = 1.05 * max(np.nanpercentile(one.curves["test_loss"], 98) for one in fits.values())
    size = (2.9 * len(fits), 8.6)
    with run.figure("fig1", caption, nrows=3, ncols=len(fits), figsize=size) as axes:
        for column, (name, one) in zip(axes.T, fits.items(), strict=True):
            field = probabilities(one.ensemble, 0, *CORNERS, grid)
            draw(column[0], field, x, y, *CORNERS, size=18)
            draw(column[1], field, x_test, y_test, *CORNERS, size=4)
            for panel in column[:2]:
                panel.set_aspect("equal")
            first, mean = 100 * one.final("test_accuracy")[0], 100 * one.final("test_accuracy").mean()
            column[0].set_title(f"{name}\ntest accuracy {first:.1f} % (mean {mean:.1f} %)", fontsize=10)
            losses(column[2], one, top)
        axes[0, 0].set_ylabel("training data")
        axes[1, 0].set_ylabel("test data")
        axes[2, 0].set_ylabel("loss")
        axes[2, 0].legend(frameon=False, fontsize=9)


def losses(panel: Any, fit: Fit, top: float) -> None:
    epochs = fit.steps / PER_EPOCH
    for key, label, colour in (("train_loss", "training", "#555555"), ("test_loss", "test", "#c44e52")):
        values = fit.curves[key]
        panel.plot(epochs, values.mean(1), color=colour, label=label)
        panel.fill_between(epochs, values.min(1), values.max(1), color=colour, alpha=0.18, linewidth=0)
    panel.set(xlabel="epoch", ylim=(0, top))
