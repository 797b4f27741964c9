"""Thesis Fig. 3.1: Langevin dynamics at six temperatures on trigonometric data."""

from __future__ import annotations

from types import SimpleNamespace

from ... import presets
from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.planar.decision_boundaries import draw_arms
from ..setups.planar.methods import format_number, grid
from ..setups.planar.problem import problem, waves
from ..setups.shared.curves import HEADINGS

PUBLISHED = (1e-8, 1e-7, 1e-6, 1e-5)
HOTTER = (1e-4, 1e-3)


@experiment(
    "fig3.1",
    title="Temperature of Langevin dynamics on trigonometric data",
    source="thesis Fig. 3.1",
    says="A 500-node perceptron trained by BAOAB (h = 0.4, γ = 10, 50,000 steps, 2 % batches) on waves with a = 3, b "
    "= 2 classifies better the higher the temperature, from τ = 1e-8 to 1e-5; temperatures beyond can harm.",
    smoke={"replicas": 2, "steps": 4},
    ci={"replicas": 2, "steps": 12_000},
    paper={"replicas": 10, "steps": 50_000},
)
def fig3_1(run: Run, settings: SimpleNamespace) -> list[Claim]:
    task = problem(run, waves(3, 2), hidden=500)
    points = [{"temperature": t} for t in (*PUBLISHED, *HOTTER)]
    make = grid(presets.langevin, points, lr=0.4, friction=10.0)
    whole = task.fit("BAOAB", make, settings.steps, repeats=len(points))
    fits = whole.split([f"τ = {format_number(point['temperature'])}" for point in points])
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    run.curves(fits, "test_accuracy", "test accuracy", "Test accuracy: mean and 10–90 % band over runs.")
    draw_arms(run, task, fits, "Classifiers of the first run, and its test points.")
    run.note(
        "The waves oscillate as cos(b x₁ π), the reading of (3.33) in which a sets the number of crossings. The "
        "thesis shows one run at each of the first four temperatures; the last two are for its remark that more can "
        "harm."
    )
    accuracy = [fit.final("test_accuracy") for fit in fits.values()]
    names = list(fits)
    rises = [
        greater(f"{names[i + 1]} classifies better than {names[i]}", "rises (figure)", accuracy[i + 1], accuracy[i])
        for i in range(len(PUBLISHED) - 1)
    ]
    return [
        greater("τ = 1e-5 classifies better than τ = 1e-8", "substantially (figure)", accuracy[3], accuracy[0]),
        *rises,
        greater("too much harms: τ = 1e-5 beats τ = 1e-3", "'Goldilocks' region", accuracy[3], accuracy[-1]),
    ]
