"""Fine-tuning (thesis 5.4): a fast head on a slow body, against full and partial fine-tuning.

All arms start from the same pre-trained weights and, run by run, from the same new head and see the
same batches. The step h/k is the one of ``rates`` with which full fine-tuning does best on held-out
training data, and serves all arms, as in the thesis. Times are measured apart from the training, all
arms taking turns. A finished run is kept, an interrupted one continues at an epoch's end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from ..errors import CheckpointError
from ..noise import mix
from . import ranks
from .run import Array, Run
from .transfer_steps import Arm, Student, Task
from .transfer_times import time_ratios

FULL, HEAD, LAST = "full fine-tuning", "head only", "last block + head"
OURS, OURS_LAST = "multirate, fast head", "multirate, fast last block + head"
OURS_TUNED = "multirate, fast head, own h"
SECONDS_BETWEEN_CHECKPOINTS = 15.0  # of one run: writing a network costs as much as a short epoch
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Outcome:
    """Test accuracies (epochs + 1, runs), and the times of five steps over those of full fine-tuning, (rounds,)."""

    accuracy: Array
    ratios: Array

    @property
    def final(self) -> Array:
        last: Array = self.accuracy[-1]
        return last


def usual_arms(task: Task) -> dict[str, Arm]:
    """The arms of Figs. 5.4 and 5.6."""
    return {
        FULL: Arm((), 1),
        HEAD: Arm((task.head,), 0),
        LAST: Arm((task.last, task.head), 0),
        OURS: Arm((task.head,)),
        OURS_LAST: Arm((task.last, task.head)),
    }


def arms_at_best_rates(run: Run, task: Task, settings: SimpleNamespace) -> tuple[Task, dict[str, Arm]]:
    """The usual arms at the best step of full fine-tuning, and the multirate one at its own best if that differs."""
    task = tuned(run, task, settings)
    arms = usual_arms(task)
    own = best_rate(run, task, OURS, arms[OURS], settings)
    return task, arms if own == task.lr else {**arms, OURS_TUNED: replace(arms[OURS], lr=own)}


def tuned(run: Run, task: Task, settings: SimpleNamespace) -> Task:
    """The task with the step of ``rates`` that is best for full fine-tuning."""
    return replace(task, lr=best_rate(run, task, FULL, Arm((), 1), settings))


def best_rate(run: Run, task: Task, name: str, arm: Arm, settings: SimpleNamespace) -> float:
    """Of ``rates``, by accuracy on held-out training data after a run with a head that no other run has."""
    if len(settings.rates) == 1:
        return float(settings.rates[0])
    found = []
    with run.progress(f"search, {name}", len(settings.rates), "run") as progress:
        for rate in settings.rates:
            one = replace(arm, lr=rate)
            replica = run.replicas + ranks.rank()
            judged = finetune(run, task, one, f"search, {name}, {rate:g}", replica, settings.epochs, task.held_out)
            found.append(judged[-1])
            progress(len(found), len(settings.rates), None)
    means = ranks.gather(np.array(found)[:, None]).mean(1)
    run.table(
        f"Accuracy on held-out training data: {name}",
        ["h/k", "accuracy %"],
        [[f"{rate:g}", f"{100 * value:.2f}"] for rate, value in zip(settings.rates, means, strict=True)],
    )
    return float(settings.rates[int(means.argmax())])


def compare(run: Run, task: Task, arms: dict[str, Arm], settings: SimpleNamespace) -> dict[str, Outcome]:
    """Train every arm ``run.replicas`` times, and time its steps beside the others'."""
    ratios = time_ratios(run, task, arms, settings.rounds)
    first, count = ranks.share(run.replicas)
    outcomes = {}
    for name, arm in arms.items():
        with run.progress(name, count, "run") as progress:
            columns = []
            for replica in range(first, first + count):
                columns.append(finetune(run, task, arm, name, replica, settings.epochs, task.accuracy))
                progress(len(columns), count, None)
        outcomes[name] = Outcome(ranks.gather(np.array(columns).T), ratios[name])
    return outcomes


def finetune(
    run: Run, task: Task, arm: Arm, name: str, replica: int, epochs: int, judge: Callable[[nn.Module], float]
) -> list[float]:
    """What the judge says at the start and after every epoch of one run."""
    file = run.checkpoint(f"{name}, run {replica}")
    kept = _read(file)
    if len(kept.get("judged", [])) == epochs + 1:
        return list(kept["judged"])
    seed = mix(run.seed, replica) >> 1
    student = Student.start(task, arm, seed)
    generator = torch.Generator().manual_seed(seed)
    if kept:
        student.model.load_state_dict(kept["model"])
        student.optimizer.load_state_dict(kept["optimizer"])
        generator.set_state(kept["generator"])
    judged = list(kept["judged"]) if kept else [judge(student.model)]
    saved = time.monotonic()
    while len(judged) <= epochs:
        train_epoch(student, generator)
        judged.append(judge(student.model))
        if len(judged) > epochs:
            _write(file, {"judged": judged})
        elif time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS:
            _write(file, {"judged": judged, "generator": generator.get_state(), **_state(student)})
            saved = time.monotonic()
    return judged


def train_epoch(student: Student, generator: torch.Generator) -> None:
    """Full batches in a random order; what fills none waits for another epoch's."""
    task = student.task
    order = torch.randperm(task.points, generator=generator)
    for index in torch.split(order[: task.points - task.points % task.batch], task.batch):
        student.step(*task.take(index))


def pretrained(run: Run, model: Network, train: Callable[[Network], None]) -> Network:
    """The model as training leaves it, on the CPU; a resumed run reads it."""
    file = run.checkpoint(f"pre-trained {ranks.rank()}")
    kept = _read(file)
    if kept:
        model.load_state_dict(kept["model"])
    else:
        train(model)
        _write(file, {"model": model.state_dict()})
    return model.cpu()


def _state(student: Student) -> dict[str, Any]:
    return {"model": student.model.state_dict(), "optimizer": student.optimizer.state_dict()}


def _write(file: Path, state: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, file)


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        state: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(f"{file} cannot be read ({error}); delete it to train that run again") from None
    return state
