"""Thesis Fig. 5.11: the input layer's biases are the ones that matter."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.mts.slow_biases import CI, INPUT, MULTIRATE, OUTPUT, PAPER, SGD, SMOKE, compare, sgd, slow

FIRST, LAST = "slow input biases", "slow output bias"


@experiment(
    "fig5.11",
    title="Slow input biases against slow output biases",
    source="thesis Fig. 5.11",
    says="Slow input biases alone give the improvement of slow biases on the four-turn spiral; slow output biases "
    "alone do not.",
    smoke=SMOKE,
    ci=CI,
    paper=PAPER,
)
def fig5_11(run: Run, settings: SimpleNamespace) -> list[Claim]:
    mu = settings.momentum
    methods = {SGD: sgd(mu), MULTIRATE: slow(mu), FIRST: slow(mu, (INPUT,)), LAST: slow(mu, (OUTPUT,))}
    accuracy = compare(run, settings, methods)
    return [
        greater("slow input biases beat SGD", "key to the gain (figure)", accuracy[FIRST], accuracy[SGD]),
        greater("slow input biases beat slow output biases", "clearly (figure)", accuracy[FIRST], accuracy[LAST]),
    ]
