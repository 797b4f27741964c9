"""One fine-tuning step (thesis 5.4): which parameters are fast, which are slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from ....multirate import Multirate


@dataclass(frozen=True)
class Task:
    """A network to be fine-tuned, and its batches."""

    make: Callable[[], nn.Module]  # a copy of the network with a new, random head
    take: Callable[[Tensor], tuple[Tensor, Tensor]]  # the batch at some indices
    head: str
    last: str
    timed_batch: int
    lr: float
    device: torch.device
    autocast: bool = False  # products in bfloat16, on a GPU
    momentum: float = 0.9


def check_split(points: int, held_out: int, available: int) -> None:
    """Check that training data (the first) and held-out data (the last) do not overlap."""
    if held_out < 1:
        raise ValueError(f"held_out must be at least 1: settings are chosen by held-out data, got {held_out}")
    if points + held_out > available:
        raise ValueError(f"{points} points and {held_out} held out overlap: there are {available}")


@dataclass(frozen=True)
class Arm:
    """A way to fine-tune: which modules are fast, and the period of all others (0: they are frozen)."""

    fast: tuple[str, ...]
    every: int = 5
    drift: bool = True
    same_step: bool = False  # slow parameters take the fast ones' step, h_S = h_F
    lr: float | None = None  # instead of the task's


@dataclass(frozen=True)
class Student:
    """A network being fine-tuned."""

    task: Task
    model: nn.Module
    optimizer: Optimizer

    @classmethod
    def start(cls, task: Task, arm: Arm, seed: int) -> Student:
        """The pre-trained network with a head drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = task.make().to(task.device).train()
        return cls(task, model, make_optimizer(model, arm, task))

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step; without drift Algorithm 5.2 takes a second gradient of the fast part after a slow step."""

        def backward() -> None:
            with half_precision(self.task.device, self.task.autocast):
                loss = cross_entropy(self.model(x), y)
            torch.autograd.backward(loss)

        self.optimizer.zero_grad()
        self.optimizer.step(backward)  # type: ignore[arg-type]


def make_optimizer(model: nn.Module, arm: Arm, task: Task) -> Optimizer:
    fast, slow = split(model, arm.fast)
    lr = task.lr if arm.lr is None else arm.lr
    if arm.every == 1:
        return torch.optim.SGD(model.parameters(), lr, momentum=task.momentum)
    if arm.every == 0:
        for p in slow:
            p.requires_grad_(False)
        return torch.optim.SGD(fast, lr, momentum=task.momentum)
    slow_lr = lr / arm.every if arm.same_step else lr
    groups: list[dict[str, Any]] = [{"params": fast}, {"params": slow, "every": arm.every, "lr": slow_lr}]
    return Multirate(groups, lr, task.momentum, drift=arm.drift, model=model)


def split(model: nn.Module, fast: tuple[str, ...]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters of the named modules, and all others."""
    chosen = {id(p) for name in fast for p in model.get_submodule(name).parameters()}
    parameters = list(model.parameters())
    return [p for p in parameters if id(p) in chosen], [p for p in parameters if id(p) not in chosen]


def half_precision(device: torch.device, on: bool) -> torch.autocast:
    """Products in bfloat16, on a GPU only."""
    return torch.autocast(device.type, torch.bfloat16, enabled=on and device.type == "cuda")


def accuracy_on(
    batches: Callable[[], Iterator[tuple[Tensor, Tensor]]], device: torch.device, autocast: bool
) -> Callable[[nn.Module], float]:
    """Evaluates the accuracy on some data."""

    @torch.no_grad()
    def accuracy(model: nn.Module) -> float:
        model.eval()
        try:
            with half_precision(device, autocast):
                right = torch.cat([model(x).argmax(-1) == y for x, y in batches()])
        finally:
            model.train()
        return float(right.double().mean())

    return accuracy
