"""Fine-tuning (thesis 5.4): a fast head on a slow body, against full and partial fine-tuning.

All arms start from the same pre-trained weights and, run by run, from the same new head and see the
same batches. Times are measured apart from the training, all arms taking turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from ..multirate import Multirate
from ..noise import mix
from . import ranks
from .run import Array, Run

FULL, HEAD, LAST = "full fine-tuning", "head only", "last block + head"
OURS, OURS_LAST = "multirate, fast head", "multirate, fast last block + head"


@dataclass(frozen=True)
class Task:
    """A pre-trained network and the data it is fine-tuned on."""

    make: Callable[[], nn.Module]  # a copy of the pre-trained network with a new, random head
    take: Callable[[Tensor], tuple[Tensor, Tensor]]  # the batch at some indices
    points: int
    accuracy: Callable[[nn.Module], float]
    head: str
    last: str
    batch: int
    lr: float
    momentum: float = 0.9


@dataclass(frozen=True)
class Arm:
    """A way to fine-tune: which modules are fast, and the period of all others (0: they rest)."""

    fast: tuple[str, ...]
    every: int = 5
    drift: bool = True
    same_step: bool = False  # slow parameters make the fast ones' step, h_S = h_F


@dataclass(frozen=True)
class Outcome:
    """Test accuracies (epochs + 1, runs), and the times of five steps over those of full fine-tuning, (rounds,)."""

    accuracy: Array
    ratios: Array

    @property
    def final(self) -> Array:
        last: Array = self.accuracy[-1]
        return last


def usual_arms(task: Task, every: int = 5) -> dict[str, Arm]:
    """The arms of Figs. 5.4 and 5.6."""
    return {
        FULL: Arm((), 1),
        HEAD: Arm((task.head,), 0),
        LAST: Arm((task.last, task.head), 0),
        OURS: Arm((task.head,), every),
        OURS_LAST: Arm((task.last, task.head), every),
    }


def compare(run: Run, task: Task, arms: dict[str, Arm], epochs: int, rounds: int) -> dict[str, Outcome]:
    """Train every arm ``run.replicas`` times, and time its steps beside the others'."""
    ratios = time_ratios(run, task, arms, rounds)
    outcomes = {}
    for name, arm in arms.items():
        first, count = ranks.share(run.replicas)
        with run.progress(name, count * epochs, "epoch") as progress:
            columns = []
            for replica in range(first, first + count):
                columns.append(finetune(run, task, arm, replica, epochs))
                progress(len(columns) * epochs, count * epochs, None)
        outcomes[name] = Outcome(ranks.gather(np.array(columns).T), ratios[name])
    return outcomes


def finetune(run: Run, task: Task, arm: Arm, replica: int, epochs: int) -> list[float]:
    """Test accuracy at the start and after every epoch of one run."""
    seed = mix(run.seed, replica) >> 1
    model, step = prepare(run, task, arm, seed)
    generator = torch.Generator().manual_seed(seed)
    accuracies = [task.accuracy(model)]
    for _ in range(epochs):
        order = torch.randperm(task.points, generator=generator)
        for start in range(0, task.points, task.batch):
            step(*task.take(order[start : start + task.batch]))
        accuracies.append(task.accuracy(model))
    return accuracies


def prepare(run: Run, task: Task, arm: Arm, seed: int) -> tuple[nn.Module, Callable[[Tensor, Tensor], None]]:
    """A fresh copy of the network and the function that makes one training step with it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task.make().to(run.device).train()
    optimizer = make_optimizer(model, arm, task)

    def step(x: Tensor, y: Tensor) -> None:
        if isinstance(optimizer, Multirate):
            with optimizer.due():
                torch.autograd.backward(cross_entropy(model(x), y))
        else:
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(x), y))
        optimizer.step()

    return model, step


def make_optimizer(model: nn.Module, arm: Arm, task: Task) -> Optimizer:
    fast, slow = split(model, arm.fast)
    if arm.every == 1:
        return torch.optim.SGD(model.parameters(), task.lr, momentum=task.momentum)
    if arm.every == 0:
        for p in slow:
            p.requires_grad_(False)
        return torch.optim.SGD(fast, task.lr, momentum=task.momentum)
    slow_lr = task.lr / arm.every if arm.same_step else task.lr
    groups: list[dict[str, Any]] = [{"params": fast}, {"params": slow, "every": arm.every, "lr": slow_lr}]
    return Multirate(groups, task.lr, task.momentum, drift=arm.drift, model=model)


def split(model: nn.Module, fast: tuple[str, ...]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters of the named modules, and all others."""
    chosen = {id(p) for name in fast for p in model.get_submodule(name).parameters()}
    parameters = list(model.parameters())
    return [p for p in parameters if id(p) in chosen], [p for p in parameters if id(p) not in chosen]


def time_ratios(run: Run, task: Task, arms: dict[str, Arm], rounds: int) -> dict[str, Array]:
    """(rounds,) time of a cycle of every arm over that of as many full steps, made right before it.

    What slows the machine for a moment slows both. A cycle has as many steps as the longest period.
    """
    length = max(arm.every for arm in arms.values())
    batch = task.take(torch.arange(task.batch))
    full = prepare(run, task, Arm((), 1), 0)[1]
    ratios: dict[str, list[float]] = {name: [] for name in arms}
    steps = {name: prepare(run, task, arm, 0)[1] for name, arm in arms.items()}
    for number in range(rounds + 1):
        for name, step in steps.items():
            cycle = length - length % max(1, arms[name].every)
            ratio = _cycle(run, step, batch, cycle) / _cycle(run, full, batch, cycle)
            if number:  # the first round warms up
                ratios[name].append(ratio)
    return {name: np.array(values) for name, values in ratios.items()}


def _cycle(run: Run, step: Callable[[Tensor, Tensor], None], batch: tuple[Tensor, Tensor], steps: int) -> float:
    _wait(run)
    start = time.perf_counter()
    for _ in range(steps):
        step(*batch)
    _wait(run)
    return time.perf_counter() - start


def _wait(run: Run) -> None:
    if run.device.type == "cuda":
        torch.cuda.synchronize(run.device)


def accuracy_on(batches: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> Callable[[nn.Module], float]:
    """The share of right answers on a test set."""

    @torch.no_grad()
    def accuracy(model: nn.Module) -> float:
        model.eval()
        try:
            right = [(model(x).argmax(-1) == y).float().sum() for x, y in batches()]
        finally:
            model.train()
        return float(sum(right)) / sum(len(y) for _, y in batches())

    return accuracy
