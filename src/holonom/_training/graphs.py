"""A training step as a CUDA graph: captured once, then replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor


def record(step: Callable[[], object]) -> Any:
    """Capture the kernels of a step as a graph to replay. None of them runs now."""
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    gc.disable()  # collecting another graph during a capture invalidates it
    try:
        with torch.cuda.graph(graph):
            step()
    finally:
        gc.enable()
    return graph


class GraphedStep:
    """Runs a step eagerly at first, then as replays of a CUDA graph. On a CPU it only calls the step.

    Args:
        step: one training step. It must read its batch from fixed memory and keep its cursor on the device.
        numbers: what a capture holds as constants; floats are compared by value, tensors by identity.
        device: where the step runs; a GPU must be the current device.
        warm_up: eager steps of a kind before its first capture, in which kernels compile and state is allocated.
        count: called with the number of steps that ran without Python, and with −1 after a capture, which runs
            Python without a step.
    """

    def __init__(
        self,
        step: Callable[[], object],
        numbers: Callable[[], list[Any]],
        device: torch.device,
        warm_up: int = 3,
        count: Callable[[int], object] = lambda steps: None,
    ) -> None:
        self._step, self._numbers, self._count = step, numbers, count
        self._cuda, self._warm_up = device.type == "cuda", warm_up
        self._graphs: dict[Hashable, Any] = {}
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
        if eager == steps:
            return
        if kind not in self._graphs:
            self._graphs[kind] = record(self._step)
            self._count(-1)
        for _ in range(steps - eager):
            self._graphs[kind].replay()
        self._count(steps - eager)

    def _drop_outdated(self) -> None:
        """Drop all graphs if a number changed.

        The next step of a kind may still depend on the old number, as a rotated scheme does on the last step size.
        That must not become a constant, so it runs eagerly before the next capture.
        """
        numbers = self._numbers()
        if self._seen is not None and not _same(self._seen, numbers):
            self._graphs.clear()
            self._eager_left = {kind: max(1, left) for kind, left in self._eager_left.items()}
        self._seen = numbers


def _same(before: list[Any], now: list[Any]) -> bool:
    if len(before) != len(now):
        return False
    pairs = zip(before, now, strict=True)
    return all(a is b or (not (isinstance(a, Tensor) or isinstance(b, Tensor)) and a == b) for a, b in pairs)
