"""Measuring every point of some families of states: data read once, points evaluated together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor

from .evaluation import Evaluation, Function, error_rate, over
from .family import Family
from .points import Points, Values, memory_budget
from .states import Subject
from .statistics import batch_norms, by_batch, observe

# All points of a batch share the work of their first layer, so a batch is cut small enough for all points, and for a
# layer's input and output to stay in the cache; larger memory would also come fresh from the system every time.
_COMFORTABLE = 8 << 20


class Options(TypedDict, total=False):
    """How points are evaluated; every function of :mod:`holonom.landscape` takes these.

    Attributes:
        replicas: R, if an ordinary model's states carry replicas in front (an ``Ensemble`` says so itself).
        statistics: "interpolate" mixes batch-norm's running statistics like parameters, as loading mixed
            state_dicts would; "recompute" measures them anew at every point.
        calibration: the data to recompute them from, as for :func:`over`; by default the evaluation's own.
        chunk: points evaluated at once; by default what fits into memory.
        autocast: run the model under autocast with this dtype.
        batched: False evaluates one point after the other, True all together. By default together, unless
            convolutions move (no faster together than alone) or something cannot be batched (with a warning).
        progress: show progress and the time left; by default on a terminal, if tqdm is installed.
        nonfinite: "raise" on NaN or infinite values, or "keep" them.
    """

    replicas: int | None
    statistics: str
    calibration: Any
    chunk: int | None
    autocast: torch.dtype | None
    batched: bool | None
    progress: bool | None
    nonfinite: str


@dataclass(frozen=True)
class Cost:
    """What a landscape will take, from one measured batch; ``seconds`` is None for a loader of unknown length."""

    points: int
    batches: int | None
    seconds: float | None
    seconds_per_batch: float
    chunk: int

    def __str__(self) -> str:
        whole = "an unknown number of batches" if self.seconds is None else f"about {self.seconds:.3g} s in all"
        return f"{self.points} points, {self.chunk} at once: {self.seconds_per_batch:.3g} s a batch, {whole}"


class Sweep:
    """Families of states of one model, to be measured by one evaluation."""

    def __init__(
        self,
        subject: Subject,
        families: list[Family],
        evaluation: Evaluation | Function,
        *,
        statistics: str = "interpolate",
        calibration: Any = None,
        chunk: int | None = None,
        autocast: torch.dtype | None = None,
        batched: bool | None = None,
        progress: bool | None = None,
        nonfinite: str = "raise",
    ) -> None:
        if statistics not in ("interpolate", "recompute"):
            raise ValueError(f"statistics must be 'interpolate' or 'recompute', got {statistics!r}")
        if nonfinite not in ("raise", "keep"):
            raise ValueError(f"nonfinite must be 'raise' or 'keep', got {nonfinite!r}")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        if not evaluation.shared and subject.replicas is None:
            raise ValueError("shared=False gives every replica data of its own, but the states have no replicas")
        self.subject = subject
        self.families = families
        self.evaluation = evaluation
        self.chunk = chunk
        self.progress = progress
        self.nonfinite = nonfinite
        self.calibration = self._calibration(calibration) if statistics == "recompute" else None
        self.points = Points(subject, families, autocast, batched)
        self._most = max(map(len, families))

    def _calibration(self, data: Any) -> Evaluation:
        if data is None and isinstance(self.evaluation, Evaluation):
            return self.evaluation
        if data is None:
            raise ValueError("statistics='recompute' with a function needs calibration=, the data to measure them on")
        return data if isinstance(data, Evaluation) else over(data, error_rate)

    # ── all points ───────────────────────────────────────────────────────────────────────────────

    def run(self) -> tuple[tuple[str, ...], list[Tensor]]:
        """The metrics' names and, for each family, float64 values of shape (metrics, [replicas,] points)."""
        totals: list[Values] = [{} for _ in self.families]
        examples = 0
        with self.subject.evaluating(), torch.no_grad():
            self._recompute()
            size = self._batch_size(self.evaluation)
            with self._bar(size) as advance:
                for batch in self.evaluation.batches(self.subject.device, size):
                    weight = self.evaluation.size(batch)
                    for total, values in zip(totals, self._pass(batch, advance), strict=True):
                        for name, value in values.items():
                            total[name] = total.get(name, 0.0) + weight * value.double()
                    examples += weight
        names = tuple(totals[0])
        return names, [torch.stack([total[name] / examples for name in names]).cpu() for total in totals]

    def cost(self) -> Cost:
        """Measure one batch, after a first round that does not count, and multiply."""
        with self.subject.evaluating(), torch.no_grad():
            size = self._batch_size(self.evaluation)
            batch = next(iter(self.evaluation.batches(self.subject.device, size)))
            for _ in range(2):
                self._synchronise()
                started = time.perf_counter()
                for _ in self._pass(batch, lambda points: None):
                    pass
                self._synchronise()
        seconds = time.perf_counter() - started
        batches = self.evaluation.count(size)
        whole = None if batches is None else batches * seconds
        return Cost(sum(map(len, self.families)), batches, whole, seconds, self.chunk or 1)

    def _synchronise(self) -> None:
        if self.subject.device.type == "cuda":
            torch.cuda.synchronize(self.subject.device)

    def _pass(self, batch: Any, advance: Callable[[int], Any]) -> Iterator[Values]:
        """One batch through every point of every family; metrics by name, ([R,] P)."""
        measure, shared = self.evaluation.measure, self.evaluation.shared
        for number in range(len(self.families)):
            pieces: list[Values] = []
            for rows in self._rows(number, self.evaluation, batch):
                pieces.append(self.points.measure(measure, number, rows, batch, shared))
                advance(len(rows))
            yield {name: torch.cat([piece[name] for piece in pieces], -1) for name in pieces[0]}

    # ── batch-norm statistics ────────────────────────────────────────────────────────────────────

    def _recompute(self) -> None:
        """Running means and variances of every point, averaged over the calibration batches."""
        norms = batch_norms(self.subject.model)
        if self.calibration is None or not norms:
            return
        self.points.remember = False
        with by_batch(norms):
            found = {number: self._statistics(number, norms, self.calibration) for number in range(len(self.families))}
        self.points.statistics, self.points.remember = found, True

    def _statistics(self, number: int, norms: Any, calibration: Evaluation) -> Values:
        def measure(model: Callable[..., Any], batch: Any) -> Values:
            return observe(norms, lambda: calibration.forward(model, batch))

        replicas_first = int(self.subject.replicas is not None)
        totals: dict[str, Any] = {}
        examples = 0
        for batch in calibration.batches(self.subject.device, None):
            weight = calibration.size(batch)
            pieces = [
                self.points.measure(measure, number, rows, batch, calibration.shared)
                for rows in self._rows(number, calibration, batch)
            ]
            for name in pieces[0]:
                value = torch.cat([piece[name] for piece in pieces], replicas_first)
                totals[name] = totals.get(name, 0.0) + weight * value
            examples += weight
        means = {name: total / examples for name, total in totals.items()}
        return {name: x.transpose(0, 1) if replicas_first else x for name, x in means.items()}

    # ── memory and progress ──────────────────────────────────────────────────────────────────────

    def _batch_size(self, evaluation: Evaluation | Function) -> int | None:
        """Examples at once, where that is ours to choose: as many as points can be evaluated on comfortably."""
        if not isinstance(evaluation, Evaluation) or not evaluation.divisible:
            return None
        probe = next(iter(evaluation.batches(self.subject.device, 32)))
        each = self.points.largest_activation(evaluation.measure, probe, evaluation.shared) / evaluation.size(probe)
        room = _COMFORTABLE if self.subject.device.type == "cpu" else memory_budget(self.subject.device) // 4
        together = [len(f) for number, f in enumerate(self.families) if not self.points.one_at_a_time(number)]
        return max(64, min(int(room / max(each * max(together, default=1), 1)), 4096))

    def _rows(self, number: int, evaluation: Evaluation | Function, batch: Any) -> Iterator[Tensor]:
        """A family's points in chunks that fit into memory: their weights, and three of the largest activations."""
        if self.points.one_at_a_time(number):
            yield torch.arange(len(self.families[number]))
            return
        if self.chunk is None:
            largest = self.points.largest_activation(evaluation.measure, batch, evaluation.shared)
            each = self.families[number].bytes_per_point + 3 * largest
            self.chunk = max(1, min(memory_budget(self.subject.device) // max(each, 1), self._most))
        yield from torch.split(torch.arange(len(self.families[number])), self.chunk)

    @contextmanager
    def _bar(self, size: int | None) -> Iterator[Callable[[int], Any]]:
        """Progress in points × batches, with the time left."""
        try:
            from tqdm import tqdm
        except ImportError:
            if self.progress:
                raise ImportError("progress needs tqdm: pip install tqdm") from None
            yield lambda points: None
            return
        batches = self.evaluation.count(size)
        total = None if batches is None else batches * sum(map(len, self.families))
        disable = None if self.progress is None else not self.progress
        with tqdm(total=total, desc="landscape", unit="point", disable=disable) as bar:
            yield bar.update
