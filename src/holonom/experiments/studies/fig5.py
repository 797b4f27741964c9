"""Paper Fig. 5: an orthogonal penalty is stiff, and less accurate than the constraint."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Run
from ..setups.planar.spiral_depth import constrained, data, free
from ..setups.shared.curves import late_mean

Cell = tuple[float, float]  # h, λ


@experiment(
    "fig5",
    title="Penalty strength and step size against the orthogonality constraint",
    source="paper Fig. 5, thesis Fig. 4.5",
    says="SGD with an orthogonal penalty never reaches the test accuracy of o-CoLA-od at h = 0.1, at whatever strength "
    "λ and step size h; large λ need a smaller h. 10 runs.",
    smoke={"replicas": 2, "depths": (4,), "epochs": 2, "steps": (0.1, 0.01), "strengths": (0.05, 5.0)},
    ci={"replicas": 2, "depths": (5,), "epochs": 400, "steps": (0.1, 0.01), "strengths": (0.05, 5.0)},
    paper={
        "replicas": 10,
        "depths": (4, 6, 8),
        "epochs": 600,
        "steps": (0.1, 0.05, 0.01),
        "strengths": (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0),
    },
)
def fig5(run: Run, settings: SimpleNamespace) -> list[Claim]:
    sets = data(run, validate=True)
    cells: list[Cell] = list(product(settings.steps, settings.strengths))
    names = [f"h={h:g}, λ={strength:g}" for h, strength in cells]
    penalty: dict[int, dict[Cell, Array]] = {}
    constraint: dict[int, Array] = {}
    best: dict[int, Cell] = {}
    fits = {}
    for depth in settings.depths:
        h, strengths = zip(*cells, strict=True)
        grid = free(run, f"penalty, p={depth}", sets, depth, settings.epochs, strengths=strengths, steps=h).split(names)
        hard = constrained(run, f"o-CoLA-od, p={depth}", sets, depth, settings.epochs)
        penalty[depth] = {cell: late_mean(fit) for cell, fit in zip(cells, grid.values(), strict=True)}
        valid = {cell: late_mean(fit, "valid_accuracy") for cell, fit in zip(cells, grid.values(), strict=True)}
        best[depth] = max(cells, key=lambda cell, valid=valid: float(valid[cell].mean()))  # type: ignore[misc]
        constraint[depth] = late_mean(hard)
        fits.update({f"{name}, p={depth}": fit for name, fit in {**grid, "o-CoLA-od": hard}.items()})
    run.save_curves(fits)
    table(run, penalty, constraint)
    picture(run, settings, penalty, constraint)
    run.note(
        "The papers do not say which λ, h and depths were tried, nor for how long. Every cell takes the same number of "
        f"steps ({settings.epochs} epochs). The rival in the first claims is the best cell of the grid on points "
        "drawn for that. A run that diverged counts as 50 %."
    )
    return [*never_reached(penalty, constraint, best), stiff(settings, penalty)]


def never_reached(
    penalty: dict[int, dict[Cell, Array]], constraint: dict[int, Array], best: dict[int, Cell]
) -> list[Claim]:
    claims = []
    for depth, (h, strength) in best.items():
        name = f"o-CoLA-od beats the best penalty (h = {h:g}, λ = {strength:g}), {depth} hidden layers"
        claims.append(greater(name, "never reached", constraint[depth], penalty[depth][h, strength]))
    return claims


def stiff(settings: SimpleNamespace, penalty: dict[int, dict[Cell, Array]]) -> Claim:
    """At the largest λ, lowering h helps."""
    strength = max(settings.strengths)

    def at(h: float) -> Array:
        return np.asarray(np.mean([cells[h, strength] for cells in penalty.values()], 0))

    name = f"λ = {strength:g} needs a smaller step than h = {max(settings.steps):g}"
    return greater(name, "stiff", at(min(settings.steps)), at(max(settings.steps)))


def table(run: Run, penalty: dict[int, dict[Cell, Array]], constraint: dict[int, Array]) -> None:
    rows = [
        [
            f"penalty, h = {h:g}, λ = {strength:g}",
            *(f"{100 * cells[h, strength].mean():.1f}" for cells in penalty.values()),
        ]
        for h, strength in next(iter(penalty.values()))
    ]
    rows.append(["o-CoLA-od, h = 0.1", *(f"{100 * values.mean():.1f}" for values in constraint.values())])
    run.table(
        "Test accuracy in the last tenth of training, %", ["method", *(f"p = {depth}" for depth in penalty)], rows
    )


def picture(
    run: Run, settings: SimpleNamespace, penalty: dict[int, dict[Cell, Array]], constraint: dict[int, Array]
) -> None:
    caption = (
        "Test accuracy in the last tenth of training, mean over runs: a panel for each depth, a line for each "
        "step size. Dashed: o-CoLA-od, which has no strength to tune."
    )
    with run.figure("fig5", caption, ncols=len(penalty), figsize=(4 * len(penalty), 3.8), sharey=True) as axes:
        for panel, (depth, cells) in zip(axes[0], penalty.items(), strict=True):
            for h in settings.steps:
                line = [100 * cells[h, strength].mean() for strength in settings.strengths]
                panel.semilogx(settings.strengths, line, marker="o", label=f"penalty, h = {h:g}")
            panel.axhline(100 * constraint[depth].mean(), color="black", linestyle="--", label="o-CoLA-od, h = 0.1")
            panel.set(title=f"{depth} hidden layers", xlabel="penalty strength λ")
            panel.grid(alpha=0.3)
        axes[0, 0].set_ylabel("test accuracy, %")
        axes[0, 0].legend(frameon=False, fontsize=8)
