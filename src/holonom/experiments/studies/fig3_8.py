"""Thesis Fig. 3.8: final weights of a small network in 100 runs, and their accuracies."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, best, greater, near
from ..run import Run
from ..setups.planar.hidden_weights import histograms, history
from ..setups.planar.methods import adam, adlala, sgd, sgld
from ..setups.planar.problem import TWO_TURNS, problem

METHODS = {
    "SGD": sgd(0.1),
    "Adam": adam(0.005),
    "SGLD": sgld(0.1, 0.1),
    "AdLaLa γ = 0.5": adlala(0.25, driving_noise=0.01, coupling=0.1, friction=0.5),
    "AdLaLa γ = 10": adlala(0.25, driving_noise=0.01, coupling=0.1, friction=10.0),
}
PUBLISHED = {"SGD": 0.79, "Adam": 0.837, "SGLD": 0.78, "AdLaLa γ = 0.5": 0.934, "AdLaLa γ = 10": 0.855}
TOLERANCE = 0.03


@experiment(
    "fig3.8",
    title="Weights and accuracies of 100 runs of a 20-node network",
    source="thesis Fig. 3.8",
    says="After 10,000 steps on the two-turn spiral (20 nodes, 500 points, 5 % batches, 100 runs) SGD and Adam have "
    "many weights near zero, SGLD and AdLaLa have not. Mean test accuracies: SGD 79 %, Adam 83.7 %, SGLD 78 %, AdLaLa "
    "93.4 % (γ = 0.5) and 85.5 % (γ = 10).",
    smoke={"replicas": 2, "steps": 4},
    ci={"replicas": 30, "steps": 10_000},
    paper={"replicas": 100, "steps": 10_000},
)
def fig3_8(run: Run, settings: SimpleNamespace) -> list[Claim]:
    task = problem(run, TWO_TURNS, train=500, hidden=20, percent=5)
    seen = history(run, task, METHODS, (settings.steps,))
    histograms(run, seen, "Hidden weights (above) and biases (below), all runs together.", slice(None))
    final = {name: moments[settings.steps] for name, moments in seen.items()}
    accuracy = {name: shot.accuracy for name, shot in final.items()}
    with run.figure("accuracies", "Test accuracies of all runs.", figsize=(7, 3.8)) as axes:
        bins = np.linspace(0.5, 1.0, 26)
        for name, values in accuracy.items():
            axes[0, 0].hist(
                values, bins, histtype="step", linewidth=1.5, label=f"{name}: mean {100 * values.mean():.1f} %"
            )
        axes[0, 0].set(xlabel="test accuracy", ylabel="runs")
        axes[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
    run.note("Weights and biases start from 0.01 N(0, 1): small weights are said to remain, so they must start small.")
    active = {name: shot.active() for name, shot in final.items()}
    chosen = "AdLaLa γ = 0.5"
    return [
        best("AdLaLa (γ = 0.5) has the highest mean accuracy", "93.4 %, next 85.5 %", accuracy, chosen),
        *(
            near(f"mean test accuracy of {name}", f"{100 * p:g} %", accuracy[name], p, TOLERANCE)
            for name, p in PUBLISHED.items()
        ),
        greater("SGD leaves more small parameters than AdLaLa", "many (figure)", active[chosen], active["SGD"]),
        greater("Adam leaves more small parameters than AdLaLa", "many (figure)", active[chosen], active["Adam"]),
    ]
