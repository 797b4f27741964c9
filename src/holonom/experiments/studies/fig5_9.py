"""Thesis Fig. 5.9: slow biases on the four-turn spiral."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.mts.slow_biases import CI, MULTIRATE, PAPER, SGD, SMOKE, compare, sgd, slow


@experiment(
    "fig5.9",
    title="Slow biases against SGD on the four-turn spiral",
    source="thesis Fig. 5.9",
    says="With all biases on the slow time scale (Algorithm 5.1, k = 5, h = 1, so weights move with 0.2) a perceptron "
    "reaches a much higher accuracy on the four-turn spiral than with SGD; 5 runs, batches of 5 %.",
    smoke=SMOKE,
    ci=CI,
    paper=PAPER,
)
def fig5_9(run: Run, settings: SimpleNamespace) -> list[Claim]:
    mu = settings.momentum
    accuracy = compare(run, settings, {SGD: sgd(mu), MULTIRATE: slow(mu)})
    return [greater("slow biases beat SGD", "large gain (figure)", accuracy[MULTIRATE], accuracy[SGD])]
