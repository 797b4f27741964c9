"""Ratios of step times that survive a noisy machine.

A candidate is timed in short blocks, each between blocks of the baseline, so that whatever slows the
machine for a second slows both. Steps are timed one by one; the first of every block find other
tensors in the caches and are not counted. The result is the ratio of the medians, and the quartiles
of the per-round ratios say how far it can be trusted. Beside it stands the ratio of the fastest blocks:
where other processes hold the cores, threads that wait for each other stall for milliseconds, and only
the blocks that were spared show the step itself.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

UNTIMED_STEPS = 2  # at the start of a block


class MissingPeer(Exception):
    """A library to compare with is not installed."""


@dataclass
class Runnable:
    """Something that can be stepped: ``load(i)`` puts the i-th gradient in place and is not timed."""

    step: Callable[[], object]
    load: Callable[[int], None] = lambda i: None
    error: Callable[[], float | None] = lambda: None


@dataclass(frozen=True)
class Contender:
    """What a row of a table is made of. ``role``: baseline, holonom, peer or floor (the cost of a part)."""

    name: str
    role: str
    build: Callable[[], Runnable]
    target: float | None = None
    error_limit: float | None = None


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    block_seconds: float = 0.04
    most_steps: int = 40  # per block
    most_rounds: int = 25
    least_rounds: int = 5
    seconds: float = 4.0  # per candidate, unless the least number of rounds takes longer


@dataclass
class Measurement:
    """The timed steps of one candidate and of the baseline's blocks around them."""

    first_step: float = 0.0
    own: list[list[float]] = field(default_factory=list)
    baseline: list[list[float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return statistics.median(x for block in self.own for x in block)

    @property
    def ratio(self) -> float:
        return self.seconds / statistics.median(x for block in self.baseline for x in block)

    @property
    def best_ratio(self) -> float:
        """Of the fastest blocks: what a quiet machine would show, if it was quiet at least once."""
        return min(map(statistics.median, self.own)) / min(map(statistics.median, self.baseline))

    @property
    def ratio_quartiles(self) -> tuple[float, float]:
        ratios = [statistics.median(a) / statistics.median(b) for a, b in zip(self.own, self.baseline)]
        if len(ratios) < 2:
            return ratios[0], ratios[0]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, high


class Timed:
    """A built contender, warmed up, that knows how many steps make a block."""

    def __init__(self, runnable: Runnable, effort: Effort) -> None:
        self.runnable = runnable
        self.count = 0
        self.first_step = self._one()  # compiles what compiles
        for _ in range(UNTIMED_STEPS):
            self._one()
        self.typical = min(self._one() for _ in range(3))
        self.block_steps = max(1, min(effort.most_steps, round(effort.block_seconds / self.typical)))

    def _one(self) -> float:
        self.runnable.load(self.count)
        self.count += 1
        start = time.perf_counter()
        self.runnable.step()
        return time.perf_counter() - start

    def block(self) -> list[float]:
        untimed = UNTIMED_STEPS if self.block_steps > 1 else 1
        return [self._one() for _ in range(untimed + self.block_steps)][untimed:]

    @property
    def block_cost(self) -> float:
        return self.typical * (self.block_steps + UNTIMED_STEPS)


def interleave(baseline: Timed, candidates: Sequence[Timed], effort: Effort) -> list[Measurement]:
    """Rounds of (baseline, first candidate, baseline, second candidate, …); slow ones leave early."""
    rounds = []
    for candidate in candidates:
        affordable = int(effort.seconds / (candidate.block_cost + baseline.block_cost))
        rounds.append(max(effort.least_rounds, min(effort.most_rounds, affordable)))
    measurements = [Measurement(candidate.first_step) for candidate in candidates]
    gc.collect()
    gc.disable()
    try:
        for turn in range(max(rounds, default=0)):
            for candidate, limit, measurement in zip(candidates, rounds, measurements):
                if turn < limit:
                    measurement.baseline.append(baseline.block())
                    measurement.own.append(candidate.block())
    finally:
        gc.enable()
    return measurements
