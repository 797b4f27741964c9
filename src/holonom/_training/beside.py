"""Groups of a captured optimizer step beside each other, so that none waits for another's kernels.

A group of a small network takes one kernel of a few microseconds, which fills a small part of a GPU.
"""

from __future__ import annotations

import torch

from .._step.run import count, move
from ..optimizer import Langevin

STREAMS = 8


class Beside:
    """Captures steps of an optimizer, a branch of the graph for each of its groups."""

    def __init__(self, optimizer: Langevin) -> None:
        self.optimizer = optimizer
        self._streams: list[torch.cuda.Stream] = []

    def step(self) -> None:
        """One step, from gradients that are in place; the groups have been checked.

        What follows on the current stream waits for weights and state, but not for the clocks (:meth:`join`).
        """
        work = self.optimizer._work()
        while len(self._streams) < min(len(work), STREAMS):
            self._streams.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        main = torch.cuda.current_stream()
        ready = main.record_event()
        for number, one in enumerate(work):
            branch = self._streams[number % STREAMS]
            branch.wait_event(ready)
            with torch.cuda.stream(branch):
                move(one, self.optimizer.state, None)
                main.wait_event(branch.record_event())
                count(one.group, self.optimizer.state, None)

    def join(self) -> None:
        """Wait for all that the branches do: a capture ends with one stream."""
        for stream in self._streams[: len(self.optimizer.param_groups)]:
            torch.cuda.current_stream().wait_stream(stream)

    def fits(self) -> bool:
        """Whether every group acts entry by entry or row by row: products of matrices fill a GPU by themselves."""
        spaces = [bucket.space for buckets in self.optimizer._buckets() for bucket in buckets]
        return torch.cuda.is_available() and all(space.traits.rowwise for space in spaces)
