"""Fine-tuning runs one after the other, with checkpoints after epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from ...._random import mix
from ... import ranks
from ...artifacts import ArtifactCache
from ...run import Array, Run
from .finetuning import Arm, Student, Task

SECONDS_BETWEEN_CHECKPOINTS = 15.0  # of one run; writing a network costs as much as a short epoch
Evaluate = Callable[[nn.Module], float]
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Size:
    """Of a run."""

    points: int
    batch: int
    epochs: int


def finetune_all(
    run: Run, task: Task, arm: Arm, name: str, size: Size, evaluate: Evaluate, alone: bool = False
) -> Array:
    """(epochs + 1, runs) evaluations; ``alone`` is a single run from a head that no other run has."""
    first, count = (run.replicas + ranks.rank(), 1) if alone else ranks.share(run.replicas)
    columns = []
    with run.progress(name, count, "run") as progress:
        for replica in range(first, first + count):
            columns.append(finetune(run, task, arm, name, replica, size, evaluate))
            progress(len(columns), count, None)
    return ranks.gather(np.array(columns).T)


def finetune(run: Run, task: Task, arm: Arm, name: str, replica: int, size: Size, evaluate: Evaluate) -> list[float]:
    """Evaluations of one run at the start and after every epoch."""
    cache, key = run.checkpoints, f"{name}, run {replica}"
    checkpoint = cache.read(key, {})
    values = list(checkpoint.get("values", []))
    if len(values) == size.epochs + 1:
        return values
    seed = mix(run.seed, replica) >> 1
    student = Student.start(task, arm, seed)
    generator = torch.Generator().manual_seed(seed)
    if checkpoint:
        student.model.load_state_dict(checkpoint["model"])
        student.optimizer.load_state_dict(checkpoint["optimizer"])
        generator.set_state(checkpoint["generator"])
    else:
        values = [evaluate(student.model)]
    saved = time.monotonic()
    while len(values) <= size.epochs:
        train_epoch(student, size, generator)
        values.append(evaluate(student.model))
        if len(values) > size.epochs:
            cache.write(key, {"values": values})
        elif time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS:
            state = {"model": student.model.state_dict(), "optimizer": student.optimizer.state_dict()}
            cache.write(key, {"values": values, "generator": generator.get_state(), **state})
            saved = time.monotonic()
    return values


def train_epoch(student: Student, size: Size, generator: torch.Generator) -> None:
    """Full batches in a random order; an incomplete batch is left out."""
    order = torch.randperm(size.points, generator=generator)
    for index in torch.split(order[: size.points - size.points % size.batch], size.batch):
        student.step(*student.task.take(index))


def remaining_epochs(cache: ArtifactCache, name: str, parts: dict[str, Any], epochs: int) -> Iterator[int]:
    """Numbers of the epochs still to do; the parts' states are read from the cache and written after every epoch."""
    checkpoint = cache.read(name, {})
    for part_name, part in parts.items():
        if checkpoint:
            part.load_state_dict(checkpoint[part_name])
    for epoch in range(checkpoint.get("epochs", 0), epochs):
        yield epoch
        cache.write(name, {"epochs": epoch + 1, **{name: part.state_dict() for name, part in parts.items()}})


def pretrained(run: Run, model: Network, train: Callable[[Network], None]) -> Network:
    """The trained model on the CPU; a resumed run reads it."""

    def state() -> dict[str, Any]:
        train(model)
        return model.state_dict()

    model.load_state_dict(run.checkpoints.per_rank("pre-trained", state))
    return model.cpu()
