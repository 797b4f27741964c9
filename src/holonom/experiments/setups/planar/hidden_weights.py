"""How the hidden layer's weights and biases spread during training (thesis 3.5, Figs. 3.6–3.8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ....ensemble import Ensemble
from ... import ranks
from ...run import Array, Run
from ..shared.curves import HEADINGS
from .problem import Method, Problem, small_gaussian

START = 0.01  # standard deviation of the initial weights
ACTIVE = 5 * START


class Snapshot(NamedTuple):
    """The hidden layer at one moment, and the test accuracy then; runs come first."""

    weights: Array
    biases: Array
    accuracy: Array

    def active(self) -> Array:
        """(runs,) share of parameters beyond five standard deviations of the initial weights."""
        share: Array = (np.abs(np.concatenate([self.weights, self.biases], 1)) > ACTIVE).mean(1)
        return share


def snapshot(ensemble: Ensemble, accuracy: Array) -> Snapshot:
    stacks = dict(ensemble.named_parameters())
    weights, biases = (ranks.gather(stacks[f"0.{k}"].detach().flatten(1).T.cpu().numpy()).T for k in ("weight", "bias"))
    return Snapshot(weights, biases, accuracy)


History = dict[str, dict[int, Snapshot]]


def history(run: Run, task: Problem, methods: Mapping[str, Method], moments: Sequence[int]) -> History:
    """Train every method from 0.01 N(0, 1), with a snapshot of the hidden layer at each of the moments (steps)."""
    seen: History = {}
    last = {}
    for name, make in methods.items():
        ensemble = task.ensemble(start=small_gaussian)
        optimizer = make(ensemble)
        seen[name] = {}
        done = 0
        for moment in moments:
            fit = task.continue_fit(
                f"{name} to step {moment}", ensemble, optimizer, moment - done, done=done, evaluations=1
            )
            seen[name][moment] = snapshot(ensemble, fit.final("test_accuracy"))
            done = moment
        last[name] = fit
    run.save_curves(last)
    run.summary(last, HEADINGS, f"After {moments[-1]} steps")
    rows = [
        [name, moment, f"{100 * s.accuracy.mean():.1f}", f"{100 * s.active().mean():.1f}", f"{s.weights.std():.3g}"]
        for name, moments_seen in seen.items()
        for moment, s in moments_seen.items()
    ]
    columns = ["method", "step", "test accuracy %", "active parameters %", "spread of the weights"]
    run.table(f"The hidden layer; active means beyond {ACTIVE:g} in size", columns, rows)
    return seen


def histograms(run: Run, seen: History, caption: str, runs: slice = slice(0, 1)) -> None:
    """Distributions of the hidden weights (above) and biases (below), one column a method, one line a moment."""
    with run.figure(
        "weights", caption, nrows=2, ncols=len(seen), figsize=(3.1 * len(seen), 5.2), sharex="row", sharey="row"
    ) as axes:
        for column, (name, moments) in enumerate(seen.items()):
            for row, kind in enumerate(("weights", "biases")):
                for moment, shot in reversed(moments.items()):
                    values = getattr(shot, kind)[runs].flatten()
                    values = values[np.isfinite(values)]
                    panel = axes[row, column]
                    panel.hist(values, bins=61, density=True, histtype="stepfilled", alpha=0.5, label=f"step {moment}")
                panel.set(xlabel=f"hidden {kind}", yscale="log")
            axes[0, column].set_title(name, fontsize=10)
        for row in range(2):
            axes[row, 0].set_ylabel("density")
        if len(moments) > 1:
            axes[0, 0].legend(frameon=False, fontsize=8)
