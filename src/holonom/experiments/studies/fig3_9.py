"""Thesis Fig. 3.9: classifiers of the four-turn spiral by Adam and AdLaLa at three times."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from ...data import spirals
from ...init import gaussian_
from ..base import experiment
from ..claims import Claim, greater
from ..run import Fit, Run
from ..setups.planar.decision_boundaries import curvatures, draw, probabilities
from ..setups.planar.methods import adam, adlala
from ..setups.planar.problem import Method, Problem, Start, problem, small_gaussian

ADAM, ADLALA = "Adam", "AdLaLa"
CORNERS = (-2.2, -2.2), (2.2, 2.2)
AVERAGED = 10  # steps, for the picture


def wide_gaussian(model: nn.Module) -> nn.Module:
    """Weights and biases from 0.5 N(0, 1), the thesis's start for Adam in this figure."""
    for parameter in model.parameters():
        gaussian_(parameter, 0.5)
    return model


METHODS: dict[str, tuple[Method, Start]] = {
    ADAM: (adam(0.005), wide_gaussian),
    ADLALA: (adlala(0.1, temperature=1e-4, friction=0.03, output_temperature=1e-5), small_gaussian),
}


@experiment(
    "fig3.9",
    title="Classifiers of the four-turn spiral by Adam and AdLaLa",
    source="thesis Fig. 3.9",
    says="With 500 nodes on the four-turn spiral (p = 1), after 20,000, 40,000 and 60,000 steps, AdLaLa (ε = 0.1, "
    "τ₁ = 1e-4, σ_A = 0.01, γ₂ = 0.03, τ₂ = 1e-5, h = 0.1) has better resolved classifiers than Adam (h = 0.005): a "
    "lower loss, a higher test accuracy and a smoother boundary.",
    smoke={"replicas": 2, "moments": (12, 24), "hidden": 20, "grid": 60},
    ci={"replicas": 3, "moments": (4000, 8000), "hidden": 100, "grid": 200},
    paper={"replicas": 10, "moments": (20_000, 40_000, 60_000), "hidden": 500, "grid": 400},
)
def fig3_9(run: Run, settings: SimpleNamespace) -> list[Claim]:
    task = problem(run, partial(spirals, turns=4, scale=2.0, noise=0.02, power=1.0), hidden=settings.hidden)
    seen = {name: stages(run, task, name, settings.moments, settings.grid) for name in METHODS}
    fits = {f"{name}, step {moment}": fit for name, moments in seen.items() for moment, (fit, _) in moments.items()}
    run.save_curves(fits)
    run.summary(fits, {"train_loss": "train loss", "test_loss": "test loss", "test_accuracy": "test accuracy %"})
    bend = {name: curvatures(run, moments[settings.moments[-1]][0].ensemble, settings.grid, CORNERS[1][0]).mean
            for name, moments in seen.items()}  # fmt: skip
    picture(run, task, seen)
    run.note(
        "The thesis shows one run of each. The picture has the first of ours, its probabilities averaged over the last "
        f"{AVERAGED} steps as there; the claims are about all runs, each with its own points and initial weights."
    )
    claims = []
    for moment in settings.moments:
        accuracy, loss = ({name: moments[moment][0].final(metric) for name, moments in seen.items()}
                          for metric in ("test_accuracy", "test_loss"))  # fmt: skip
        claims += [
            greater(f"step {moment}: AdLaLa is more accurate", "far better resolved", accuracy[ADLALA], accuracy[ADAM]),
            greater(f"step {moment}: AdLaLa has a lower test loss", "lower", loss[ADAM], loss[ADLALA],
                    diverged=math.inf),
        ]  # fmt: skip
    if not all(np.isfinite(values).any() for values in bend.values()):
        run.note("No run of one of the methods has a boundary yet, so that their curvature is not compared.")
        return claims
    name = "Adam's boundary bends more at the end (curvature of the level curve)"
    return [*claims, greater(name, "smoother", bend[ADAM], bend[ADLALA], diverged=math.inf, by="median")]


def stages(run: Run, task: Problem, name: str, moments: tuple[int, ...], grid: int) -> dict[int, tuple[Fit, Tensor]]:
    """At every moment (a step) the fit, and the first run's probabilities averaged over the last steps."""
    make, start = METHODS[name]
    ensemble = task.ensemble(start=start)
    optimizer = make(ensemble)
    found, done = {}, 0
    for moment in moments:
        fields = []
        for target in (moment - AVERAGED + 1, *range(moment - AVERAGED + 2, moment + 1)):
            fit = task.continue_fit(f"{name} to step {target}", ensemble, optimizer, target - done, done=done,
                                    evaluations=1)  # fmt: skip
            fields.append(probabilities(ensemble, 0, *CORNERS, grid))
            done = target
        found[moment] = fit, torch.stack(fields).mean(0)
    return found


def picture(run: Run, task: Problem, seen: dict[str, dict[int, tuple[Fit, Tensor]]]) -> None:
    rows, columns = len(seen), len(next(iter(seen.values())))
    x, y = task.x_test[0].cpu(), task.y_test[0].cpu()
    caption = "The first run's classifiers with its test points: rows are methods, columns numbers of steps."
    size = (3.2 * columns, 3.3 * rows)
    with run.figure("classifiers", caption, nrows=rows, ncols=columns, figsize=size) as axes:
        for row, (name, moments) in zip(axes, seen.items(), strict=True):
            for panel, (moment, (fit, field)) in zip(row, moments.items(), strict=True):
                draw(panel, field, x, y, *CORNERS)
                accuracy = 100 * fit.final("test_accuracy")[0]
                panel.set_title(f"{name}, step {moment:,}: {accuracy:.1f} %", fontsize=10)
                panel.set_aspect("equal")
