"""Timing the steps of every split of a model, and leaving no trace of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .blocks import Block, find_blocks
from .optimizer import Multirate
from .planning import Cost

Times = tuple[float, float, float, float]
IN_A_ROW = 3  # steps timed together, as a run would make them


def measure(
    model: nn.Module,
    sample: Any,
    loss: Callable[[Any], Any] | None,
    names: Iterable[str] | None,
    repeats: int,
    clock: Callable[[], float] | None,
) -> list[Cost]:
    """The cost of a step for every split, beginning with everything fast."""
    devices = {p.device for p in model.parameters() if p.is_cuda}
    read = clock or time.perf_counter

    def now() -> float:
        for device in devices:
            torch.cuda.synchronize(device)
        return read()

    def forward() -> Any:
        return call(model, sample)

    with restored(model, devices):
        blocks = find_blocks(model, forward, names)
        # Splits take turns, so that a machine that warms up or slows down does so for all of them.
        rounds = [
            [time_split(blocks, first, forward, loss or default_loss, now) for first in range(len(blocks))]
            for _ in range(repeats)
        ]
    costs = []
    for first, (block, times) in enumerate(zip(blocks, zip(*rounds, strict=True), strict=True)):
        behind = sum(other.count for other in blocks[first:])
        costs.append(Cost(block.name, behind, *map(statistics.median, zip(*times, strict=True))))
    return costs


def time_split(
    blocks: list[Block],
    first: int,
    forward: Callable[[], Any],
    loss: Callable[[Any], Any],
    now: Callable[[], float],
) -> Times:
    """Forward, backward and update of a fast step, and whole steps in a row. With lr = 0 nothing moves."""
    parts = [(blocks[first:], 1), (blocks[:first], 2)]
    groups = [{"params": [p for b in part for p in b.parameters], "every": every} for part, every in parts if part]
    opt = Multirate(groups, lr=0.0)

    def step(read: Callable[[], float]) -> list[float]:
        for group in opt.param_groups:
            group["clock"] = 1  # a fast step
        moments = [read()]
        with opt.due():
            value = loss(forward())
            moments.append(read())
            value.backward()
        moments.append(read())
        opt.step()
        return [*moments, read()]

    step(now)  # to warm up
    start, middle, end, done = step(now)
    beginning = now()
    for _ in range(IN_A_ROW):
        step(lambda: 0.0)
    return middle - start, end - middle, done - end, (now() - beginning) / IN_A_ROW


def call(model: nn.Module, sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return model(**sample)
    return model(*sample) if isinstance(sample, (tuple, list)) else model(sample)


def default_loss(output: Any) -> Tensor:
    """An output's own loss, or the mean of the square of its first tensor that has a gradient."""
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    values = output.values() if isinstance(output, Mapping) else output
    tensors = [output] if isinstance(output, Tensor) else [x for x in values if isinstance(x, Tensor)]
    for tensor in tensors:
        if tensor.requires_grad:
            return tensor.square().mean()
    raise ValueError("the model's output holds no tensor with a gradient; pass loss=, a function of the output")


@contextmanager
def restored(model: nn.Module, devices: set[torch.device]) -> Iterator[None]:
    """Put weights, buffers, gradients and random state back as they were."""
    gradients = [(p, p.grad) for p in model.parameters()]
    values = [(x, x.detach().clone()) for x in (*model.parameters(), *model.buffers())]
    try:
        with torch.random.fork_rng(sorted(devices, key=str)):
            yield
    finally:
        with torch.no_grad():
            for now, before in values:
                now.copy_(before)
        for p, gradient in gradients:
            p.grad = gradient
