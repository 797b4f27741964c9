"""Thesis Fig. 3.18: chess endgames."""

from __future__ import annotations

from types import SimpleNamespace

from ...data import chess
from ..base import experiment
from ..claims import Claim
from ..run import Run
from ..setups.perceptrons.tables import compare
from ..setups.planar.methods import adam, adlala, sgd

METHODS = {
    "Adam": adam(0.005),
    "SGD with momentum": sgd(0.05, momentum=0.95),
    "AdLaLa": adlala(0.2, friction=0.1, coupling=0.01, driving_noise=0.001, temperature=1e-5, output_temperature=1e-6),
}


@experiment(
    "fig3.18",
    title="Chess endgames, king and rook against king",
    source="thesis Fig. 3.18",
    says="With two hidden layers of 500 and 200 nodes and batches of 1024, AdLaLa predicts in how many moves Black "
    "loses (18 classes) better than Adam and SGD with momentum.",
    data=("uci-krkopt",),
    smoke={"replicas": 2, "epochs": 1, "rows": 2000},
    ci={"replicas": 3, "epochs": 15, "rows": None},
    paper={"replicas": 5, "epochs": 500, "rows": None},
)
def fig3_18(run: Run, settings: SimpleNamespace) -> list[Claim]:
    return compare(run, chess(run.root), METHODS, (500, 200), 1024, settings.epochs, settings.rows)
