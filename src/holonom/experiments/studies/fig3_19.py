"""Thesis Fig. 3.19: poker hands."""

from __future__ import annotations

from types import SimpleNamespace

from ...data import poker
from ..base import experiment
from ..claims import Claim
from ..run import Run
from ..setups.perceptrons.tables import compare
from ..setups.planar.methods import adam, adlala, sgd

METHODS = {
    "Adam": adam(0.005),
    "SGD with momentum": sgd(0.005, momentum=0.9),
    "AdLaLa": adlala(0.05, friction=5.0, coupling=0.01, driving_noise=0.001, temperature=1e-4, output_temperature=1e-6),
}


@experiment(
    "fig3.19",
    title="Poker hands",
    source="thesis Fig. 3.19",
    says="With 200 hidden nodes and batches of 500, AdLaLa names the class of a poker hand (ten classes) better than "
    "Adam and SGD with momentum, in the mean of 5 runs.",
    data=("uci-poker-hand",),
    smoke={"replicas": 2, "epochs": 1, "rows": 2000},
    ci={"replicas": 3, "epochs": 50, "rows": None},
    paper={"replicas": 5, "epochs": 500, "rows": None},
)
def fig3_19(run: Run, settings: SimpleNamespace) -> list[Claim]:
    return compare(run, poker(run.root), METHODS, (200,), 500, settings.epochs, settings.rows)
