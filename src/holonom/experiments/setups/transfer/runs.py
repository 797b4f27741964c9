"""Fine-tuning runs one after the other: a finished one is kept, an interrupted one goes on at an epoch's end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from ....files import load, save
from ....noise import mix
from ... import ranks
from ...run import Array, Run
from .finetuning import Arm, Student, Task

SECONDS_BETWEEN_CHECKPOINTS = 15.0  # of one run: writing a network costs as much as a short epoch
Judge = Callable[[nn.Module], float]
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Size:
    """Of a run."""

    points: int
    batch: int
    epochs: int


def one_by_one(run: Run, task: Task, arm: Arm, name: str, size: Size, judge: Judge, alone: bool = False) -> Array:
    """(epochs + 1, runs) of what the judge says; ``alone`` is a single run from a head that no other has."""
    first, count = (run.replicas + ranks.rank(), 1) if alone else ranks.share(run.replicas)
    columns = []
    with run.progress(name, count, "run") as progress:
        for replica in range(first, first + count):
            columns.append(finetune(run, task, arm, name, replica, size, judge))
            progress(len(columns), count, None)
    return ranks.gather(np.array(columns).T)


def finetune(run: Run, task: Task, arm: Arm, name: str, replica: int, size: Size, judge: Judge) -> list[float]:
    """What the judge says at the start and after every epoch of one run."""
    file = run.checkpoint(f"{name}, run {replica}")
    kept = read(file)
    if len(kept.get("judged", [])) == size.epochs + 1:
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
    while len(judged) <= size.epochs:
        train_epoch(student, size, generator)
        judged.append(judge(student.model))
        if len(judged) > size.epochs:
            save({"judged": judged}, file)
        elif time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS:
            state = {"model": student.model.state_dict(), "optimizer": student.optimizer.state_dict()}
            save({"judged": judged, "generator": generator.get_state(), **state}, file)
            saved = time.monotonic()
    return judged


def train_epoch(student: Student, size: Size, generator: torch.Generator) -> None:
    """Full batches in a random order; what fills none waits for another epoch's."""
    order = torch.randperm(size.points, generator=generator)
    for index in torch.split(order[: size.points - size.points % size.batch], size.batch):
        student.step(*student.task.take(index))


def epochs_to_go(file: Path, parts: dict[str, Any], epochs: int) -> Iterator[int]:
    """Numbers of the epochs still to do: the parts' states are read from the file, and written after every epoch."""
    kept = read(file)
    for name, part in parts.items():
        if kept:
            part.load_state_dict(kept[name])
    for epoch in range(kept.get("epochs", 0), epochs):
        yield epoch
        save({"epochs": epoch + 1, **{name: part.state_dict() for name, part in parts.items()}}, file)


def pretrained(run: Run, model: Network, train: Callable[[Network], None]) -> Network:
    """The model as training leaves it, on the CPU; a resumed run reads it."""
    file = run.checkpoint(f"pre-trained {ranks.rank()}")
    kept = read(file)
    if kept:
        model.load_state_dict(kept["model"])
    else:
        train(model)
        save({"model": model.state_dict()}, file)
    return model.cpu()


def read(file: Path) -> dict[str, Any]:
    """What was written, or nothing."""
    return load(file, "delete it to train that run again") if file.exists() else {}
