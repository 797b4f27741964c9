"""Optimizers compared on one task: settings chosen by validation data with the same effort, then runs that share seeds.

A training is an array of :data:`LOOKS` + 1 numbers, of which smaller ones are better: on validation data at
:func:`marks` of its steps, and last on the test data, or NaN. Trainings that do not need each other can be made in
pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from torch import nn
from torch.optim import Optimizer

from ... import ranks
from ...run import Array, Run
from .arms import Arm, Setting

LOOKS = 10
Make = Callable[[nn.Module], Optimizer]
Key = TypeVar("Key")


class Task(Protocol):
    """What is learnt."""

    run: Run

    def train(self, title: str, make: Make, size: Any, replica: int, tests: bool) -> Array:
        """One training; ``replica`` decides its weights and batches."""


@dataclass(frozen=True)
class Job:
    """Trainings of one setting. ``alone``: a single one, which is none of those compared."""

    title: str
    make: Make
    size: Any
    tests: bool = False
    alone: bool = False

    def replicas(self, run: Run) -> range:
        first, count = (run.replicas + ranks.rank(), 1) if self.alone else ranks.share(run.replicas)
        return range(first, first + count)


def trainings(task: Task, jobs: Mapping[Key, Job]) -> dict[Key, Array]:
    """(LOOKS + 1, runs) of every job."""
    names = {key: [f"{job.title}, run {replica}" for replica in job.replicas(task.run)] for key, job in jobs.items()}
    made = task.run.each(
        {
            name: partial(task.train, name, job.make, job.size, replica, job.tests)
            for key, job in jobs.items()
            for name, replica in zip(names[key], job.replicas(task.run), strict=True)
        },
        (LOOKS + 1,),
    )
    return {key: ranks.gather(np.array([made[name] for name in own]).T) for key, own in names.items()}


def search(task: Task, arms: Sequence[Arm], size: Any, count: int, heading: str) -> dict[Arm, Setting]:
    """The setting of every arm that validation data like best, among ``count``."""
    jobs = {
        (arm, setting): Job(f"search, {arm.title(setting)}", arm.optimizer(setting), size, alone=True)
        for arm in arms
        for setting in arm.grid[:count]
    }
    scores = {key: float(found[-2].mean()) for key, found in trainings(task, jobs).items()}
    return {arm: _best(task.run, arm, {s: scores[arm, s] for s in arm.grid[:count]}, heading) for arm in arms}


def _best(run: Run, arm: Arm, scores: dict[Setting, float], heading: str) -> Setting:
    order = sorted(scores, key=lambda setting: float(np.nan_to_num(scores[setting], nan=np.inf)))
    rows = [[f"{lr:g}", f"{second:g}", f"{scores[lr, second]:.4f}"] for lr, second in order]
    run.table(f"Search: {arm.name}", ["lr", arm.second, heading], rows)
    best, rates = order[0], {lr for lr, _ in scores}
    if len(rates) > 2 and best[0] in (min(rates), max(rates)):
        run.note(f"The best lr of {arm.name}, {best[0]:g}, is at the edge of those tried.")
    return best


def final(chosen: Mapping[Arm, Setting], size: Any) -> dict[Arm, Job]:
    """The runs that are compared, and the only ones that see test data."""
    return {arm: Job(arm.title(s), arm.optimizer(s), size, tests=True) for arm, s in chosen.items()}


def table(run: Run, title: str, chosen: Mapping[Arm, Setting], found: Mapping[Arm, Array], scale: float = 1.0) -> None:
    """Means at the end, and every run's number on the test data, times ``scale``."""
    digits = ".4f" if scale == 1 else ".2f"
    rows = []
    for arm, setting in chosen.items():
        valid, test = scale * found[arm][-2], scale * found[arm][-1]
        runs = ", ".join(f"{value:{digits}}" for value in test)
        rows.append([arm.title(setting), f"{valid.mean():{digits}}", f"{test.mean():{digits}}", runs])
    run.table(f"{title}, {run.replicas} runs", ["optimizer", "validation", "test", "runs (test)"], rows)


def picture(run: Run, found: Mapping[Arm, Array], steps: int, heading: str, scale: float = 1.0) -> None:
    caption = f"On validation data during training, mean over {run.replicas} runs."
    with run.figure("validation", caption, figsize=(7, 4.2)) as axes:
        for arm, values in found.items():
            axes[0, 0].plot(marks(steps), scale * values[:LOOKS].mean(1), label=arm.name)
        axes[0, 0].set(xlabel="step", ylabel=heading)
        axes[0, 0].grid(alpha=0.3)
        axes[0, 0].legend(frameon=False, fontsize=8)


def schedule(step: int, steps: int, warm_up: int) -> float:
    """Warm-up, constant, and linear to 0 over the last two fifths."""
    return min(1.0, (step + 1) / max(1, warm_up), max(0.0, steps - step) / (0.4 * steps))


def marks(steps: int) -> list[int]:
    return [round(steps * k / LOOKS) for k in range(1, LOOKS + 1)]
