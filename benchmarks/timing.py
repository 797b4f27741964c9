"""Ratios of step times that survive a noisy machine.

A candidate is timed in short blocks, each beside a block of the baseline, so that whatever slows the
machine for a second slows both. Steps are timed one by one; the first of every block find other
tensors in the caches and are not counted. Where other processes hold the cores, threads that wait for
each other stall for milliseconds; so the processor time that others took is watched, and a round they
disturbed is repeated as long as patience lasts.

The result is the ratio of the medians over quiet rounds (over all, if hardly any was quiet), the
quartiles of the per-round ratios say how far it can be trusted, and beside it stands the ratio of the
fastest single steps.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

UNTIMED_STEPS = 2  # at the start of a block
LEAST_QUIET = 3  # rounds, below which all are counted and none is judged
FOREIGN_SHARE = 0.1  # of the cores, above which a round counts as disturbed


class MissingPeer(Exception):
    """A library to compare with is not installed."""


class UnsuitedPeer(Exception):
    """It would take minutes here, for a reason that says nothing about it."""


@dataclass
class Runnable:
    """Something that can be stepped.

    ``load(i)`` puts the i-th gradient in place and is not timed; ``note`` says what else a reader must know.
    A call of ``step`` takes ``steps`` of them.
    """

    step: Callable[[], object]
    load: Callable[[int], None] = lambda i: None
    error: Callable[[], float | None] = lambda: None
    note: Callable[[], str] = lambda: ""
    steps: int = 1


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
    patience: int = 3  # times as many rounds, where others disturb them
    section_seconds: float = 90.0  # after which every candidate gets its least number of rounds and no more


@dataclass
class Round:
    """A block of steps beside a block of the baseline's; ``foreign``: the cores' share that others took."""

    baseline: list[float]
    own: list[float]
    foreign: float

    @property
    def ratio(self) -> float:
        return statistics.median(self.own) / statistics.median(self.baseline)

    @property
    def quiet(self) -> bool:
        return self.foreign < FOREIGN_SHARE


@dataclass
class Measurement:
    """All rounds of one candidate."""

    first_step: float = 0.0
    rounds: list[Round] = field(default_factory=list)

    @property
    def quiet_share(self) -> float:
        return sum(r.quiet for r in self.rounds) / len(self.rounds)

    @property
    def trusted(self) -> bool:
        return sum(r.quiet for r in self.rounds) >= LEAST_QUIET

    @property
    def counted(self) -> list[Round]:
        return [r for r in self.rounds if r.quiet] if self.trusted else self.rounds

    @property
    def seconds(self) -> float:
        return statistics.median(x for r in self.counted for x in r.own)

    @property
    def baseline_seconds(self) -> float:
        return statistics.median(x for r in self.counted for x in r.baseline)

    @property
    def ratio(self) -> float:
        return self.seconds / self.baseline_seconds

    @property
    def fastest_ratio(self) -> float:
        """Of single steps: what a quiet machine would show, if it was quiet at least for a moment."""
        return min(x for r in self.rounds for x in r.own) / min(x for r in self.rounds for x in r.baseline)

    @property
    def ratio_quartiles(self) -> tuple[float, float]:
        ratios = [r.ratio for r in self.counted]
        if len(ratios) < 2:
            return ratios[0], ratios[0]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, high


class Watch:
    """How much of the cores that torch's threads want everybody else used since the last look.

    Cores beyond those threads are anybody's. 0 where the system does not say.
    """

    def __init__(self) -> None:
        self._last = self._read()

    def _read(self) -> tuple[float, float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return _busy_seconds(), usage.ru_utime + usage.ru_stime, time.perf_counter()

    def foreign(self) -> float:
        now = self._read()
        busy, own, wall = (b - a for a, b in zip(self._last, now))
        self._last = now
        threads = torch.get_num_threads()
        spare = max(0, (os.cpu_count() or 1) - threads) * wall
        return max(0.0, busy - own - spare) / (threads * wall)


def _busy_seconds() -> float:
    """Processor time of all processes, and what a hypervisor took, from Linux's counters."""
    try:
        with open("/proc/stat") as counters:
            user, nice, system, _, _, irq, softirq, steal = map(int, counters.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class Timed:
    """A built contender, warmed up, that knows how many steps make a block."""

    def __init__(self, runnable: Runnable, effort: Effort) -> None:
        self.runnable = runnable
        self.count = 0
        self.first_step = self._one()  # compiles what compiles
        for _ in range(UNTIMED_STEPS):
            self._one()
        self.typical = min(self._whole() for _ in range(3))
        self.block_steps = max(1, min(effort.most_steps, round(effort.block_seconds / self.typical)))

    def _whole(self) -> float:
        """What a step takes together with what comes before it."""
        start = time.perf_counter()
        self._one()
        return time.perf_counter() - start

    def _one(self) -> float:
        self.runnable.load(self.count)
        self.count += 1
        start = time.perf_counter()
        self.runnable.step()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def block(self) -> list[float]:
        untimed = UNTIMED_STEPS if self.block_steps > 1 else 1
        return [self._one() / self.runnable.steps for _ in range(untimed + self.block_steps)][untimed:]

    @property
    def block_cost(self) -> float:
        return self.typical * (self.block_steps + UNTIMED_STEPS)


def interleave(baseline: Timed, candidates: Sequence[Timed], effort: Effort) -> list[Measurement]:
    """Rounds of (baseline, first candidate, baseline, second candidate, …); slow ones leave early."""
    wanted, allowed = [], []
    for candidate in candidates:
        affordable = int(effort.seconds / (candidate.block_cost + baseline.block_cost))
        wanted.append(max(effort.least_rounds, min(effort.most_rounds, affordable)))
        allowed.append(wanted[-1] * effort.patience)
    measurements = [Measurement(candidate.first_step) for candidate in candidates]
    watch = Watch()
    deadline = time.perf_counter() + effort.section_seconds
    gc.collect()
    gc.disable()
    try:
        while True:
            if time.perf_counter() > deadline:
                allowed = [effort.least_rounds] * len(candidates)
            active = [
                (candidate, measurement)
                for candidate, measurement, want, allow in zip(candidates, measurements, wanted, allowed)
                if len(measurement.rounds) < allow and sum(r.quiet for r in measurement.rounds) < want
            ]
            if not active:
                return measurements
            for candidate, measurement in active:
                watch.foreign()
                steps = baseline.block(), candidate.block()
                measurement.rounds.append(Round(*steps, watch.foreign()))
    finally:
        gc.enable()
