"""Paper Table 1: mean curvature of the decision boundary for five optimizers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, best, greater
from ..run import Run
from ..setups.planar.decision_boundaries import mean_curvatures
from ..setups.planar.spiral_circle import METHODS, PER_EPOCH, data, fit
from ..setups.shared.curves import HEADINGS

PUBLISHED = {"SGD": 519, "SGD+WD": 51.1, "C-SGD": 9.38, "SGLD": 8.73, "C-SGLD": 6.08}


@experiment(
    "table1",
    title="Boundary curvature of five optimizers on the spiral",
    source="paper Table 1, thesis Table 4.1",
    says="Averaged over 100 runs of 10,000 epochs, the decision boundary of C-SGLD is the smoothest: mean "
    "curvature 519 (SGD), 51.1 (SGD with weight decay), 9.38 (C-SGD), 8.73 (SGLD), 6.08 (C-SGLD).",
    smoke={"replicas": 2, "epochs": 2, "grid": 100},
    ci={"replicas": 8, "epochs": 400, "grid": 300},
    paper={"replicas": 100, "epochs": 10_000, "grid": 1000},
)
def table1(run: Run, settings: SimpleNamespace) -> list[Claim]:
    sets = data(run)
    fits = {name: fit(run, name, sets, settings.epochs) for name in METHODS}
    curvature = {name: mean_curvatures(run, one.ensemble, settings.grid) for name, one in fits.items()}
    points = {name: mean_curvatures(run, one.ensemble, settings.grid, method="points") for name, one in fits.items()}
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    run.curves(fits, "test_loss", "test loss", "Test loss: mean and 10–90 % band over runs.", PER_EPOCH)
    rows = [
        [name, PUBLISHED[name], f"{np.nanmean(c):.4g}", f"{np.nanmedian(c):.4g}", f"{np.nanmean(points[name]):.4g}"]
        for name, c in curvature.items()
    ]
    run.table("Mean boundary curvature", ["method", "published", "measured", "median run", "by (4.60) on points"], rows)
    run.note(
        "The claims use the curvature of the level curve, which converges as the grid is refined. The last column is "
        "the thesis's formula (4.60) on consecutive contour points, which does not: near-equal points dominate it."
    )
    final = {name: one.final("test_loss") for name, one in fits.items()}
    return [
        best("C-SGLD has the smallest curvature", "6.08, next 8.73", curvature, "C-SGLD", lowest=True),
        greater("SGD's boundary bends more than C-SGD's", "519 against 9.38", curvature["SGD"], curvature["C-SGD"]),
        greater("noise smooths: SGD bends more than SGLD", "519 against 8.73", curvature["SGD"], curvature["SGLD"]),
        best("C-SGLD has the lowest test loss", "stable while others rise (Fig. 2)", final, "C-SGLD", lowest=True),
    ]
