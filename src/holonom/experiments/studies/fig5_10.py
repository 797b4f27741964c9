"""Thesis Fig. 5.10: neither a larger step nor a pause alone has the effect of slow biases."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.mts.slow_biases import CI, MULTIRATE, PAPER, SGD, SMOKE, compare, faster, sgd, slow

LARGER, PAUSED, LEAP = "biases with h = 1 every step", "biases paused, same h", "slow biases, no drift"


@experiment(
    "fig5.10",
    title="Ablations of slow biases",
    source="thesis Fig. 5.10",
    says="Putting the biases on another time scale (h = 1 at every step), or freezing them for k = 5 steps and then "
    "using the weights' stepsize 0.2, gives no improvement over SGD like that of the multirate method.",
    smoke=SMOKE,
    ci=CI,
    paper=PAPER,
)
def fig5_10(run: Run, settings: SimpleNamespace) -> list[Claim]:
    mu = settings.momentum
    methods = {
        SGD: sgd(mu),
        MULTIRATE: slow(mu),
        LARGER: faster(mu),
        PAUSED: slow(mu, drift=False, stretch=1),
        LEAP: slow(mu, drift=False),
    }
    accuracy = compare(run, settings, methods)
    run.note(
        "The text calls the method 'freezing the biases for k steps and then boosting them', which is Algorithm 5.2, "
        "and names Algorithm 5.1, in which they drift: both are trained."
    )
    ours = accuracy[MULTIRATE]
    return [
        greater("slow biases beat SGD", "large gain (figure)", ours, accuracy[SGD]),
        greater("slow biases beat a larger step alone", "no such gain (figure)", ours, accuracy[LARGER]),
        greater("slow biases beat a pause alone", "no such gain (figure)", ours, accuracy[PAUSED]),
        greater("without drift they beat SGD too", "frozen, then boosted", accuracy[LEAP], accuracy[SGD]),
    ]
