"""Thesis Fig. 3.7: how the hidden weights spread on the four-turn spiral."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, best, greater
from ..run import Run
from ..setups.planar.hidden_weights import histograms, history
from ..setups.planar.methods import adlala
from ..setups.planar.problem import FOUR_TURNS, problem
from .fig3_6 import METHODS

WITH_LESS_FRICTION = {**METHODS, "AdLaLa": adlala(0.25, driving_noise=0.01, coupling=0.1, friction=0.1)}


@experiment(
    "fig3.7",
    title="Hidden weights during training, four-turn spiral",
    source="thesis Fig. 3.7",
    says="On the harder spiral SGD and Adam stay with many small weights while AdLaLa makes headway. Test accuracy of "
    "one run at steps 50, 1000 and 10,000: SGD 50, 56, 58 %; Adam 58, 55, 67 %; SGLD 52, 50, 54 %; AdLaLa 45, 62, 80 "
    "%.",
    smoke={"replicas": 2, "moments": (1, 2, 3)},
    ci={"replicas": 4, "moments": (50, 1000, 8000)},
    paper={"replicas": 20, "moments": (50, 1000, 10_000)},
)
def fig3_7(run: Run, settings: SimpleNamespace) -> list[Claim]:
    task = problem(run, FOUR_TURNS, hidden=500)
    seen = history(run, task, WITH_LESS_FRICTION, settings.moments)
    histograms(run, seen, "Hidden weights (above) and biases (below) of the first run.")
    run.note("Weights and biases start from 0.01 N(0, 1): small weights are said to remain, so they must start small.")
    last = {name: moments[settings.moments[-1]] for name, moments in seen.items()}
    active = {name: shot.active() for name, shot in last.items()}
    return [
        best(
            "AdLaLa is the most accurate",
            "80 %, next 67 %",
            {name: shot.accuracy for name, shot in last.items()},
            "AdLaLa",
        ),
        greater("SGD leaves more small parameters than AdLaLa", "many (figure)", active["AdLaLa"], active["SGD"]),
        greater("Adam leaves more small parameters than AdLaLa", "many (figure)", active["AdLaLa"], active["Adam"]),
    ]
