"""Paper Table 1: mean curvature of the decision boundary for five optimizers."""

from __future__ import annotations

import math
from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, best, greater
from ..run import Array, Run
from ..setups.planar.decision_boundaries import COLUMNS, CURVATURE_NOTE, cells, curvatures
from ..setups.planar.spiral_circle import METHODS, PER_EPOCH, data, fit
from ..setups.shared.curves import HEADINGS

PUBLISHED = {  # mean, standard deviation, maximum
    "SGD": "519, 4.33e4, 3.26e8",
    "SGD+WD": "51.1, 3.80e3, 1.14e7",
    "C-SGD": "9.38, 317, 5.58e5",
    "SGLD": "8.73, 189, 6.27e5",
    "C-SGLD": "6.08, 40.8, 1.43e5",
}


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
    run.save_curves(fits)
    level = {name: curvatures(run, one.ensemble, settings.grid) for name, one in fits.items()}
    points = {name: curvatures(run, one.ensemble, settings.grid, method="points") for name, one in fits.items()}
    run.summary(fits, HEADINGS)
    run.curves(fits, "test_loss", "test loss", "Test loss: mean and 10–90 % band over runs.", PER_EPOCH)
    columns = ["method", "published: mean, std, max", *COLUMNS]
    run.table("Boundary curvature", columns, [[n, PUBLISHED[n], *cells(points[n], level[n])] for n in fits])
    run.note(CURVATURE_NOTE)
    final = {name: one.final("test_loss") for name, one in fits.items()}
    return [
        *claims({name: one.mean for name, one in points.items()}, " by (4.60)", "", "median"),
        *claims({name: one.mean for name, one in level.items()}, " of the level curve", " by (4.60)", "mean"),
        best("C-SGLD has the lowest test loss", "stable while others rise (Fig. 2)", final, "C-SGLD", lowest=True),
    ]


def claims(curvature: dict[str, Array], which: str, remark: str, by: str) -> list[Claim]:
    """With the remark behind it, a published number is not taken for the size of another curvature."""
    flat, bent = curvature["C-SGD"], curvature["SGD"]
    smallest, other = f"6.08, next 8.73{remark}", f"519 against 9.38{remark}"
    noisy = f"519 against 8.73{remark}"
    return [
        best(f"C-SGLD has the smallest curvature{which}", smallest, curvature, "C-SGLD", lowest=True, by=by),
        greater(f"SGD's boundary bends more than C-SGD's{which}", other, bent, flat, diverged=math.inf, by=by),
        greater(f"SGD bends more than SGLD{which}", noisy, bent, curvature["SGLD"], diverged=math.inf, by=by),
    ]
