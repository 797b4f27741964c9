"""Thesis Fig. 3.17: LOL over temperature."""

from __future__ import annotations

from types import SimpleNamespace

from ... import presets
from ..base import experiment
from ..claims import Claim, greater, near
from ..run import Run
from ..setups.planar.decision_boundaries import draw_arms
from ..setups.planar.methods import format_number, grid
from ..setups.planar.problem import FOUR_TURNS, problem
from ..setups.shared.curves import HEADINGS

TEMPERATURES = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)


@experiment(
    "fig3.17",
    title="LOL over temperature on the four-turn spiral",
    source="thesis Fig. 3.17",
    says="A 200-node perceptron trained by LOL (γ = 1, h = 0.8, 50,000 steps) improves with temperature up to τ = "
    "1e-5 and then gets worse; at τ = 1e-3 the method is unusable.",
    smoke={"replicas": 2, "steps": 4},
    ci={"replicas": 3, "steps": 20_000},
    paper={"replicas": 10, "steps": 50_000},
)
def fig3_17(run: Run, settings: SimpleNamespace) -> list[Claim]:
    task = problem(run, FOUR_TURNS, hidden=200)
    points = [{"temperature": t} for t in TEMPERATURES]
    whole = task.fit("LOL", grid(presets.lol, points, lr=0.8, friction=1.0), settings.steps, repeats=len(points))
    fits = whole.split([f"τ = {format_number(t)}" for t in TEMPERATURES])
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    run.curves(fits, "test_accuracy", "test accuracy", "Test accuracy: mean and 10–90 % band over runs.")
    draw_arms(run, task, fits, "Classifiers of the first run, and its test points.", columns=4)
    run.note("Batches are 2 % of 1000 points, as in the other figures with this spiral; the caption does not say.")
    accuracy = {t: fit.final("test_accuracy") for t, fit in zip(TEMPERATURES, fits.values(), strict=True)}
    return [
        greater("τ = 1e-5 beats τ = 0", "improves with τ", accuracy[1e-5], accuracy[0.0]),
        greater("τ = 1e-5 beats τ = 1e-7", "improves with τ", accuracy[1e-5], accuracy[1e-7]),
        greater("τ = 1e-5 beats τ = 1e-4", "then gets worse", accuracy[1e-5], accuracy[1e-4]),
        near("τ = 1e-3 is unusable: near chance", "unusable", accuracy[1e-3], 0.5, 0.1),
    ]
