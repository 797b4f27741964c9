"""Thesis Fig. 3.6: how the hidden weights spread on the two-turn spiral."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.planar.hidden_weights import histograms, history
from ..setups.planar.methods import adam, adlala, sgd, sgld
from ..setups.planar.problem import TWO_TURNS, problem

METHODS = {
    "SGD": sgd(0.2),
    "Adam": adam(0.005),
    "SGLD": sgld(0.1, 0.01),
    "AdLaLa": adlala(0.25, driving_noise=0.01, coupling=0.1, friction=0.5),
}


@experiment(
    "fig3.6",
    title="Hidden weights during training, two-turn spiral",
    source="thesis Fig. 3.6",
    says="With 500 nodes, SGLD and AdLaLa excite many parameters within 50 steps, SGD and Adam few. Test accuracy of "
    "one run at steps 50, 1000 and 10,000: SGD 66, 66, 96 %; Adam 65, 89, 99 %; SGLD 61, 68, 74 %; AdLaLa 62, 82, 99 "
    "%.",
    smoke={"replicas": 2, "moments": (1, 2, 3)},
    ci={"replicas": 4, "moments": (50, 1000, 8000)},
    paper={"replicas": 20, "moments": (50, 1000, 10_000)},
)
def fig3_6(run: Run, settings: SimpleNamespace) -> list[Claim]:
    task = problem(run, TWO_TURNS, hidden=500)
    seen = history(run, task, METHODS, settings.moments)
    histograms(run, seen, "Hidden weights (above) and biases (below) of the first run.")
    run.note("Weights and biases start from 0.01 N(0, 1): small weights are said to remain, so they must start small.")
    first, _, last = settings.moments
    early = {name: moments[first].active() for name, moments in seen.items()}
    final = {name: moments[last].accuracy for name, moments in seen.items()}
    return [
        greater("AdLaLa excites more parameters than SGD at once", "step 50 (figure)", early["AdLaLa"], early["SGD"]),
        greater("AdLaLa excites more parameters than Adam at once", "step 50 (figure)", early["AdLaLa"], early["Adam"]),
        greater("SGLD excites more parameters than SGD at once", "step 50 (figure)", early["SGLD"], early["SGD"]),
        greater("AdLaLa ends more accurate than SGD", "99 % against 96 %", final["AdLaLa"], final["SGD"]),
        greater("AdLaLa ends more accurate than SGLD", "99 % against 74 %", final["AdLaLa"], final["SGLD"]),
    ]
