"""Thesis Fig. 3.13: overfitting of a noisy two-turn spiral."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Fit, Run
from ..setups.planar.methods import adam, adlala, lol, sgd
from ..setups.planar.problem import TWO_TURNS, problem
from ..setups.shared.curves import HEADINGS

METHODS = {
    "SGD": sgd(0.1),
    "Adam": adam(0.005),
    "LOL": lol(0.1, friction=1.0, temperature=1e-6),
    "AdLaLa": adlala(0.1, output_temperature=1e-8, friction=1000.0, driving_noise=0.01, coupling=0.1),
}


@experiment(
    "fig3.13",
    title="Overfitting of a noisy spiral",
    source="thesis Fig. 3.13",
    says="With 500 nodes on 200 training points of a noisy two-turn spiral (c = 0.1, 4000 test points), SGD's test "
    "loss rises after a while; that of LOL (γ₁ = 1, τ₁ = 1e-6) and AdLaLa (γ = 1000) does not, though they learn more "
    "slowly.",
    smoke={"replicas": 2, "steps": 4},
    ci={"replicas": 4, "steps": 10_000},
    paper={"replicas": 20, "steps": 100_000},
)
def fig3_13(run: Run, settings: SimpleNamespace) -> list[Claim]:
    task = problem(run, partial(TWO_TURNS, noise=0.1), train=200, test=4000, hidden=500)
    fits = {name: task.fit(name, make, settings.steps, evaluations=100) for name, make in METHODS.items()}
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    run.curves(fits, "test_loss", "test loss", "Test loss: mean and 10–90 % band over runs.", yscale="log")
    run.curves(fits, "train_loss", "training loss", "Training loss: mean and 10–90 % band over runs.", yscale="log")
    run.curves(fits, "test_accuracy", "test accuracy", "Test accuracy: mean and 10–90 % band over runs.")
    rises = {name: _rise(fit) for name, fit in fits.items()}
    rows = [[name, f"{rise.mean():.3g}", f"{fit.curves['test_loss'].mean(1).min():.3g}"]
            for (name, rise), fit in zip(rises.items(), fits.values(), strict=True)]  # fmt: skip
    run.table("Overfitting", ["method", "rise of the test loss", "its lowest mean"], rows)
    run.note(
        "The rise is the test loss at the end less that at the step where the mean over runs is lowest, both averaged "
        "over a tenth of training. Steps and batches (2 % of the points) are not in the text."
    )
    nothing = np.zeros_like(rises["SGD"])
    return [
        greater("SGD's test loss rises", "clearly overfits (figure)", rises["SGD"], nothing, diverged=math.inf),
        greater("LOL's rises less than SGD's", "does not rise (figure)", rises["SGD"], rises["LOL"], diverged=math.inf),
        greater(
            "AdLaLa's rises less than SGD's", "does not rise (figure)", rises["SGD"], rises["AdLaLa"], diverged=math.inf
        ),
        greater(
            "LOL's rises less than Adam's", "does not rise (figure)", rises["Adam"], rises["LOL"], diverged=math.inf
        ),
        greater(
            "AdLaLa's rises less than Adam's",
            "does not rise (figure)",
            rises["Adam"],
            rises["AdLaLa"],
            diverged=math.inf,
        ),
    ]


def _rise(fit: Fit) -> Array:
    """(runs,) final test loss minus that at the minimum of the mean over runs, each a mean over a tenth of training."""
    curve = fit.curves["test_loss"]
    width = max(1, len(curve) // 10)
    smooth = np.lib.stride_tricks.sliding_window_view(curve, width, 0).mean(-1)
    rise: Array = smooth[-1] - smooth[int(np.nanargmin(np.nanmean(smooth, 1)))]
    return rise
