"""Thesis Table 4.5 and Fig. 4.11: the temperature of C-SGLD, boundary curvature and generalisation."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, best, greater
from ..run import Array, Fit, Run
from ..setups.planar.decision_boundaries import COLUMNS, CURVATURE_NOTE, cells, curvatures
from ..setups.planar.spiral_circle import PER_EPOCH, constrained, data, fit
from ..setups.shared.curves import HEADINGS

PUBLISHED = {0.0: 9.38, 1e-6: 9.01, 5e-6: 7.75, 1e-5: 7.06, 5e-5: 6.08, 1e-4: 7.62, 5e-4: 15.9}  # means
BEST = "τ = 5e-05"


@experiment(
    "table4.5",
    title="Temperature and boundary curvature of C-SGLD",
    source="thesis Table 4.5, Fig. 4.11",
    says="Among τ = 0, 1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 5e-4 the mean curvature of C-SGLD's decision boundary is smallest "
    "at 5e-5 (9.38, 9.01, 7.75, 7.06, 6.08, 7.62, 15.9; 100 runs of 10,000 epochs), and so is the test loss.",
    smoke={"replicas": 2, "epochs": 1, "grid": 60},
    ci={"replicas": 4, "epochs": 1000, "grid": 300},
    paper={"replicas": 100, "epochs": 10_000, "grid": 1000},
)
def table4_5(run: Run, settings: SimpleNamespace) -> list[Claim]:
    temperatures = list(PUBLISHED)
    names = [f"τ = {t:g}" for t in temperatures]
    whole = fit(
        run,
        "C-SGLD, all temperatures",
        data(run),
        settings.epochs,
        lambda ensemble: constrained(ensemble, ensemble.spread(temperatures)),
        repeats=len(temperatures),
    )
    fits = whole.split(names)
    run.save_curves(fits)
    level, points = (
        dict(zip(names, curvatures(run, whole.ensemble, settings.grid, method=how).split(len(names)), strict=True))
        for how in ("level", "points")
    )
    run.summary(fits, HEADINGS)
    for metric, heading in (("test_loss", "test loss"), ("test_accuracy", "test accuracy")):
        run.curves(fits, metric, heading, f"{heading.capitalize()}: mean and 10–90 % band over runs.", PER_EPOCH)
    rows = [[n, p, *cells(points[n], level[n])] for n, p in zip(names, PUBLISHED.values(), strict=True)]
    run.table("Boundary curvature", ["C-SGLD", "published mean", *COLUMNS], rows)
    run.note(CURVATURE_NOTE)
    picture(run, fits, {name: one.mean for name, one in level.items()})
    loss = {name: one.final("test_loss") for name, one in fits.items()}
    return [
        *claims({name: one.mean for name, one in points.items()}, " by (4.60)", "", "median"),
        *claims({name: one.mean for name, one in level.items()}, " of the level curve", " by (4.60)", "mean"),
        best("τ = 5e-5 has the lowest test loss", "lowest (Fig. 4.11)", loss, BEST, lowest=True),
    ]


def claims(curvature: dict[str, Array], which: str, remark: str, by: str) -> list[Claim]:
    """With the remark behind it, a published number is not taken for the size of another curvature."""
    cold, hot, chosen = (curvature[name] for name in ("τ = 0", "τ = 0.0005", BEST))
    smallest, without, too_much = (
        f"{text}{remark}" for text in ("6.08, next 7.06", "9.38 against 6.08", "15.9 against 6.08")
    )
    return [
        best(f"τ = 5e-5 has the smallest curvature{which}", smallest, curvature, BEST, lowest=True, by=by),
        greater(f"no noise bends more than τ = 5e-5{which}", without, cold, chosen, diverged=math.inf, by=by),
        greater(f"too much noise bends more, too{which}", too_much, hot, chosen, diverged=math.inf, by=by),
    ]


def picture(run: Run, fits: dict[str, Fit], curvature: dict[str, Array]) -> None:
    caption = "Curvature, test loss and test accuracy against temperature: mean over runs and its standard error."
    values = {
        "mean curvature of the level curve": list(curvature.values()),
        "test loss": [one.final("test_loss") for one in fits.values()],
        "test accuracy, %": [100 * one.final("test_accuracy") for one in fits.values()],
    }
    with run.figure("temperature", caption, ncols=3, figsize=(12, 3.8)) as axes:
        for panel, (heading, columns) in zip(axes[0], values.items(), strict=True):
            means = [np.nanmean(c) for c in columns]
            errors = [np.nanstd(c, ddof=1) / np.sqrt(len(c)) if len(c) > 1 else 0.0 for c in columns]
            panel.errorbar(range(len(means)), means, errors, marker="o", capsize=3)
            panel.set_xticks(range(len(means)), [f"{t:g}" for t in PUBLISHED], rotation=45)
            panel.set(xlabel="temperature τ", ylabel=heading)
            panel.grid(alpha=0.3)
