"""Thesis Fig. 3.4: the barrier between first and last weights on the two-turn spiral, AdLaLa against Adam."""

from __future__ import annotations

import math
from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.perceptrons.tasks import line, on_spirals
from ..setups.planar.methods import adam, adlala
from ..setups.planar.problem import TWO_TURNS
from ..setups.shared.curves import HEADINGS
from ..setups.shared.loss_lines import draw, mostly_barrier, table

METHODS = {"AdLaLa": adlala(0.25, driving_noise=0.01, coupling=0.1, friction=0.5), "Adam": adam(0.005)}


@experiment(
    "fig3.4",
    title="A loss barrier on the way to the spiral's minima",
    source="thesis Fig. 3.4",
    says="On the straight line from initial to trained weights (20 nodes, two-turn spiral, 500 + 500 points, 5 % "
    "batches, 20,000 steps) there is typically a barrier, consistently and significantly higher for AdLaLa, whose "
    "minima generally have lower test loss. Two runs: test accuracy 99 and 98 % (AdLaLa), 91 and 94 % (Adam).",
    smoke={"replicas": 2, "steps": 4, "points": 11},
    ci={"replicas": 20, "steps": 20_000, "points": 51},
    paper={"replicas": 100, "steps": 20_000, "points": 101},
)
def fig3_4(run: Run, settings: SimpleNamespace) -> list[Claim]:
    task = on_spirals(run, "two turns", TWO_TURNS, (20,))
    fits = {name: task.fit(name, make, settings.steps) for name, make in METHODS.items()}
    lines = {name: line(task, task.ensemble(), fit.ensemble, settings.points) for name, fit in fits.items()}
    run.save_curves(fits)
    run.summary(fits, {**HEADINGS, "train_accuracy": "train accuracy %"})
    table(run, lines)
    draw(run, "lines", {"two-turn spiral": lines}, "From initial (α = 0) to trained weights (α = 1): mean and runs.")
    run.note(
        "The thesis does not give the figure's optimizer settings. They are Fig. 3.8's, for the same network and "
        "spiral: AdLaLa h = 0.25, σ_A = 0.01, ε = 0.1, γ = 0.5, τ = 1e-4; Adam h = 0.005. "
        "Weights start as PyTorch sets them."
    )
    heights = {name: one.heights() for name, one in lines.items()}
    accuracy = {name: fit.final("test_accuracy") for name, fit in fits.items()}
    losses = {name: fit.final("test_loss") for name, fit in fits.items()}
    return [
        mostly_barrier("most of AdLaLa's lines cross a barrier", "typically (figure)", lines["AdLaLa"]),
        mostly_barrier("most of Adam's lines cross a barrier", "typically (figure)", lines["Adam"]),
        greater(
            "AdLaLa's barrier is higher than Adam's",
            "consistently, significantly",
            heights["AdLaLa"],
            heights["Adam"],
            by="median",
        ),
        greater("AdLaLa's test loss is lower", "generally lower", losses["Adam"], losses["AdLaLa"], diverged=math.inf),
        greater("AdLaLa's test accuracy is higher", "98.5 against 92.5 %", accuracy["AdLaLa"], accuracy["Adam"]),
    ]
