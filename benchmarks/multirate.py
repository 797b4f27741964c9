"""Multirate training: its own step, and a cycle of fine-tuning beside the passes it cannot do without."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from holonom import Multirate
from holonom.models import ResNet, resnet18, tiny_resnet

from .tensors import Problem
from .timing import Contender, Runnable

EVERY, LR = 5, 1e-3


def all_due(problem: Problem, target: float) -> Contender:
    """A step at which every parameter has its turn: SGD with momentum, bit for bit."""

    def build() -> Runnable:
        params = problem.parameters()
        optimizer = Multirate(params, LR)
        return Runnable(optimizer.step, _loader(problem, optimizer, params, clock=0))

    return Contender("Multirate, everything due", "holonom", build, target)


def fast_sgd(problem: Problem, fast: int) -> Contender:
    """torch's SGD on the last ``fast`` tensors and nothing else."""

    def build() -> Runnable:
        params = problem.parameters()
        optimizer = torch.optim.SGD(params[-fast:], LR, momentum=0.9, foreach=True)
        return Runnable(optimizer.step, problem.loader(params))

    return Contender("torch SGD, momentum 0.9, foreach, fast part only", "baseline", build)


def fast_step(problem: Problem, fast: int, drift: bool, target: float | None = None) -> Contender:
    """A step between two turns of the slow part, which drifts along or rests."""

    def build() -> Runnable:
        params = problem.parameters()
        groups = [{"params": params[-fast:]}, {"params": params[:-fast], "every": EVERY}]
        optimizer = Multirate(groups, LR, drift=drift)
        _loader(problem, optimizer, params, clock=0)(0)
        optimizer.step()  # momenta to drift by
        return Runnable(optimizer.step, _loader(problem, optimizer, params, clock=1))

    return Contender(f"Multirate, fast step, {'slow part drifts' if drift else 'no drift'}", "holonom", build, target)


def _loader(problem: Problem, optimizer: Multirate, params: Sequence[Tensor], clock: int) -> Callable[[int], None]:
    """Puts gradients where they are due; the clock is set so that all steps are of one kind."""

    def load(i: int) -> None:
        for group in optimizer.param_groups:
            group["clock"] = clock
        with optimizer.due():
            for p, g in zip(params, problem.gradient(i)):
                p.grad = g if p.requires_grad else None

    return load


# ── fine-tuning ──────────────────────────────────────────────────────────────────────────────────


class Tuned:
    """A residual network with a batch of images."""

    def __init__(self, quick: bool) -> None:
        torch.manual_seed(0)
        self.model: ResNet = tiny_resnet(channels=3) if quick else resnet18()
        self.x = torch.randn(4 if quick else 16, 3, 16 if quick else 32, 16 if quick else 32)
        self.y = torch.randint(10, (len(self.x),))
        self.head = list(self.model.head.parameters())
        self.body = [*self.model.stem.parameters(), *self.model.stages.parameters()]

    def backward(self) -> None:
        cross_entropy(self.model(self.x), self.y).backward()


def allowed(quick: bool) -> Contender:
    """By hand, what a cycle cannot do without: one whole step, and k − 1 of the head on features without a graph."""

    def build() -> Runnable:
        tuned = Tuned(quick)
        head, body = (torch.optim.SGD(p, LR, momentum=0.9, foreach=True) for p in (tuned.head, tuned.body))

        def cycle() -> None:
            head.zero_grad()
            body.zero_grad()
            tuned.backward()
            body.step()
            head.step()
            for _ in range(EVERY - 1):
                head.zero_grad()
                with torch.no_grad():
                    features = tuned.model.stages(tuned.model.stem(tuned.x)).mean((2, 3))
                cross_entropy(tuned.model.head(features), tuned.y).backward()
                head.step()

        return Runnable(cycle)

    return Contender(f"the passes of a cycle, k = {EVERY}, by hand", "baseline", build)


def cycle(quick: bool, drift: bool, target: float | None) -> Contender:
    """As a user writes it."""

    def build() -> Runnable:
        tuned = Tuned(quick)
        groups = [{"params": tuned.head}, {"params": tuned.body, "every": EVERY}]
        optimizer = Multirate(groups, LR, drift=drift, model=tuned.model)

        def run() -> None:
            for _ in range(EVERY):
                with optimizer.due():
                    tuned.backward()
                optimizer.step()

        return Runnable(run)

    return Contender(f"Multirate, {'drift' if drift else 'no drift'}, {EVERY} steps", "holonom", build, target)


def full(quick: bool) -> Contender:
    """Full fine-tuning: the speed-up is this row's ratio over Multirate's."""

    def build() -> Runnable:
        tuned = Tuned(quick)
        optimizer = torch.optim.SGD(tuned.model.parameters(), LR, momentum=0.9, foreach=True)

        def run() -> None:
            for _ in range(EVERY):
                optimizer.zero_grad()
                tuned.backward()
                optimizer.step()

        return Runnable(run)

    return Contender(f"full fine-tuning, {EVERY} steps", "peer", build)


def size(quick: bool) -> int:
    module: nn.Module = Tuned(quick).model
    return sum(p.numel() for p in module.parameters())
