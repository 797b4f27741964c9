"""Training steps as CUDA graphs: captured once, then replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

LARGEST = 32  # steps of one graph
GROW_AFTER = 16  # replays of a graph before one of twice as many steps is captured: schedules capture anew every epoch


def record(step: Callable[[], object]) -> Any:
    """Capture the kernels of a step as a graph to replay. None of them runs now."""
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()  # collecting another graph during a capture invalidates it
    try:
        with torch.cuda.graph(graph):
            step()
    finally:
        if collects:
            gc.enable()
    return graph


class GraphedStep:
    """Runs a step eagerly at first, then as replays of a CUDA graph. On a CPU it only calls the step.

    Args:
        step: one training step. It must read its batch from fixed memory and keep its cursor on the device.
        numbers: what a capture holds as constants; floats are compared by value, tensors by identity.
        device: where the step runs; a GPU must be the current device.
        warm_up: eager steps of a kind before its first capture, in which kernels compile and state is allocated.
        count: called with the number of steps that ran without Python, and with −n after a capture, which runs the
            Python of n steps without a step.
        many: takes so many steps in a capture. With it graphs of 2, 4, … steps follow, which need fewer launches.
    """

    def __init__(
        self,
        step: Callable[[], object],
        numbers: Callable[[], list[Any]],
        device: torch.device,
        warm_up: int = 3,
        count: Callable[[int], object] = lambda steps: None,
        many: Callable[[int], object] | None = None,
    ) -> None:
        self._step, self._numbers, self._count, self._many = step, numbers, count, many
        self._cuda, self._warm_up = device.type == "cuda", warm_up
        self._graphs: dict[Hashable, list[Any]] = {}  # graph i of a kind has 2ⁱ steps
        self._replays: dict[Hashable, list[int]] = {}
        self._eager_left: dict[Hashable, int] = {}
        self._seen: list[Any] | None = None

    def __call__(self, kind: Hashable = "step", steps: int = 1) -> None:
        """Take steps of one kind: they run the same kernels on the same memory. Steps of kind None stay eager."""
        eager = steps
        if self._cuda and kind is not None:
            self._drop_outdated()
            eager = min(steps, self._eager_left.setdefault(kind, self._warm_up))
            self._eager_left[kind] -= eager
        for _ in range(eager):
            self._step()
        if eager < steps:
            self._replay(kind, steps - eager)

    def _replay(self, kind: Hashable, steps: int) -> None:
        left = steps
        while left:
            graph, size = self._largest(kind, left)
            graph.replay()
            left -= size
        self._count(steps)

    def _largest(self, kind: Hashable, most: int) -> tuple[Any, int]:
        """The largest graph there is for so many steps; a larger one is captured where this one has paid."""
        graphs, replays = self._graphs.setdefault(kind, []), self._replays.setdefault(kind, [])
        place = min(len(graphs), most.bit_length()) - 1
        larger = 1 << place + 1
        pays = place < 0 or (self._many is not None and replays[place] >= GROW_AFTER)
        if pays and place + 1 == len(graphs) and larger <= min(most, LARGEST):
            place += 1
            graphs.append(record(self._step if self._many is None else partial(self._many, larger)))
            replays.append(0)
            self._count(-larger)
        replays[place] += 1
        return graphs[place], 1 << place

    def _drop_outdated(self) -> None:
        """Drop all graphs if a number changed.

        The next step of a kind may still depend on the old number, as a rotated scheme does on the last step size.
        That must not become a constant, so it runs eagerly before the next capture.
        """
        numbers = self._numbers()
        if self._seen is not None and not _same(self._seen, numbers):
            self._graphs.clear()
            self._replays.clear()
            self._eager_left = {kind: max(1, left) for kind, left in self._eager_left.items()}
        self._seen = numbers


def _same(before: list[Any], now: list[Any]) -> bool:
    if len(before) != len(now):
        return False
    pairs = zip(before, now, strict=True)
    return all(a is b or (not (isinstance(a, Tensor) or isinstance(b, Tensor)) and a == b) for a, b in pairs)
