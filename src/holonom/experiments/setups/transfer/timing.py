"""The time of a step relative to one of full fine-tuning."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from ...run import Array, Run
from .finetuning import Arm, Student, Task


def time_ratios(run: Run, task: Task, arms: dict[str, Arm], rounds: int) -> dict[str, Array]:
    """(rounds,) time of a cycle of every arm over that of as many full steps, made right before it.

    Both are slowed by what else runs on the machine. A cycle has as many steps as the longest period. A resumed run
    reads its measurements.
    """
    ratios = run.checkpoints.per_rank("times", lambda: _measure(run, task, arms, rounds))
    return {name: np.array(values) for name, values in ratios.items()}


def _measure(run: Run, task: Task, arms: dict[str, Arm], rounds: int) -> dict[str, list[float]]:
    length = max(arm.every for arm in arms.values())
    batch = task.take(torch.arange(task.timed_batch))
    full = Student.start(task, Arm((), 1), 0)
    students = {name: Student.start(task, arm, 0) for name, arm in arms.items()}
    ratios: dict[str, list[float]] = {name: [] for name in arms}
    with run.progress("timing", rounds, "round") as progress:
        for number in range(rounds + 1):
            for name, student in students.items():
                steps = length - length % max(1, arms[name].every)
                ratio = _seconds(student, batch, steps) / _seconds(full, batch, steps)
                if number:  # the first round warms up
                    ratios[name].append(ratio)
            progress(number, rounds, None)
    return ratios


def _seconds(student: Student, batch: tuple[Tensor, Tensor], steps: int) -> float:
    _synchronize(student.task.device)
    start = time.perf_counter()
    for _ in range(steps):
        student.step(*batch)
    _synchronize(student.task.device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
