"""Fine-tuning (thesis 5.4): a fast head on a slow body, against full and partial fine-tuning.

All arms start from the same pre-trained weights and, run by run, from the same new head and see the
same batches. The step h/k is the one of ``rates`` with which full fine-tuning does best on held-out
training data, and serves all arms, as in the thesis; where variants of multirate training are compared
with each other, it is the best one for its usual form. Times are measured separately from the training,
in rounds over all arms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from ...run import Array, Run
from .finetuning import Arm, Task
from .timing import time_ratios

FULL, HEAD, LAST = "full fine-tuning", "head only", "last block + head"
OURS, OURS_LAST = "multirate, fast head", "multirate, fast last block + head"
OURS_TUNED = "multirate, fast head, own h"


@dataclass(frozen=True)
class Outcome:
    """Test accuracies (epochs + 1, runs), and the times of five steps over those of full fine-tuning, (rounds,)."""

    accuracy: Array
    ratios: Array

    @property
    def final(self) -> Array:
        last: Array = self.accuracy[-1]
        return last


@dataclass(frozen=True)
class Transfer:
    """A task to time, and a function that trains an arm and returns (epochs + 1, runs) accuracies on the test set.

    Its last argument asks for a search instead: one run from a separate head, evaluated on held-out training data.
    """

    task: Task
    train: Callable[[Task, Arm, str, bool], Array]


def usual_arms(task: Task) -> dict[str, Arm]:
    """The arms of Figs. 5.4 and 5.6."""
    return {
        FULL: Arm((), 1),
        HEAD: Arm((task.head,), 0),
        LAST: Arm((task.last, task.head), 0),
        OURS: Arm((task.head,)),
        OURS_LAST: Arm((task.last, task.head)),
    }


def arms_at_best_rates(run: Run, transfer: Transfer, settings: SimpleNamespace) -> tuple[Transfer, dict[str, Arm]]:
    """The usual arms at the best step of full fine-tuning, and the multirate one at its own best if that differs."""
    transfer = tuned(run, transfer, settings)
    arms = usual_arms(transfer.task)
    best = best_rate(run, transfer, OURS, arms[OURS], settings)
    return transfer, arms if best == transfer.task.lr else {**arms, OURS_TUNED: replace(arms[OURS], lr=best)}


def tuned(run: Run, transfer: Transfer, settings: SimpleNamespace, name: str = FULL) -> Transfer:
    """With the step of ``rates`` that is best for one of the usual arms."""
    lr = best_rate(run, transfer, name, usual_arms(transfer.task)[name], settings)
    return replace(transfer, task=replace(transfer.task, lr=lr))


def best_rate(run: Run, transfer: Transfer, name: str, arm: Arm, settings: SimpleNamespace) -> float:
    """Of ``rates``, by accuracy on held-out training data."""
    if len(settings.rates) == 1:
        return float(settings.rates[0])
    means = [
        float(transfer.train(transfer.task, replace(arm, lr=rate), f"search, {name}, {rate:g}", True)[-1].mean())
        for rate in settings.rates
    ]
    run.table(
        f"Accuracy on held-out training data: {name}",
        ["h/k", "accuracy %"],
        [[f"{rate:g}", f"{100 * value:.2f}"] for rate, value in zip(settings.rates, means, strict=True)],
    )
    best = float(settings.rates[int(np.argmax(means))])
    if best in (min(settings.rates), max(settings.rates)):
        run.note(f"The best h/k of {name}, {best:g}, lies at the edge of those tried.")
    return best


def compare(run: Run, transfer: Transfer, arms: dict[str, Arm], settings: SimpleNamespace) -> dict[str, Outcome]:
    """Train every arm ``run.replicas`` times, and time its steps."""
    ratios = time_ratios(run, transfer.task, arms, settings.rounds)
    return {name: Outcome(transfer.train(transfer.task, arm, name, False), ratios[name]) for name, arm in arms.items()}
