"""Evaluates all points of some lines or planes: data is read once, and every batch is used for all points."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from ._tracer import Tracer
from .evaluation import Evaluation, Function, as_evaluation, error_rate, over, tensors
from .loop import Loop, Values
from .points import Points
from .states import Subject
from .statistics import batch_norms, by_batch, observe

# Points of a batch share the products of their first layer. So batches on a CPU are made small enough for all points
# to be evaluated at once while a layer's input and output stay in the cache.
_CACHE_BYTES = 8 << 20

Evaluate = Evaluation | Callable[[Any], Any]


class Options(TypedDict, total=False):
    """How points are evaluated; every function of :mod:`holonom.landscape` that evaluates takes these.

    Attributes:
        replicas: R, if an ordinary model's states carry replicas in front (not needed for an ``Ensemble``).
        statistics: "interpolate" sums batch norm's running statistics like parameters, as if summed state_dicts were
            loaded; "recompute" measures them at every point.
        calibration: the data to recompute them from, as for :func:`over`; by default the evaluation's data.
        chunk: points evaluated at once; by default as many as fit into memory.
        autocast: run the model under autocast with this dtype.
        batched: False evaluates one point after the other, True all together. By default together, unless
            convolutions move (no faster together than alone) or vmap cannot do it (with a warning).
        fast: False runs the plain loop: for every point put its state into the model and call the evaluation. The
            default gives the same values, to rounding, in less time.
        progress: show progress and the time left; by default on a terminal, if tqdm is installed.
        nonfinite: "raise" on NaN or infinite values, or "keep" them.
    """

    replicas: int | None
    statistics: str
    calibration: Any
    chunk: int | None
    autocast: torch.dtype | None
    batched: bool | None
    fast: bool
    progress: bool | None
    nonfinite: str


@dataclass(frozen=True)
class Cost:
    """Expected time of a landscape, from one measured batch; ``seconds`` is None for a loader of unknown length."""

    points: int
    batches: int | None
    seconds: float | None
    seconds_per_batch: float
    chunk: int

    def __str__(self) -> str:
        whole = "an unknown number of batches" if self.seconds is None else f"about {self.seconds:.3g} s in all"
        return f"{self.points} points, {self.chunk} at once: {self.seconds_per_batch:.3g} s a batch, {whole}"


class Sweep:
    """All points of some lines or planes of one model, evaluated by the plain loop or the tracer."""

    def __init__(
        self,
        subject: Subject,
        points: list[Points],
        evaluate: Evaluate,
        *,
        replicas: int | None = None,  # the subject has them
        statistics: str = "interpolate",
        calibration: Any = None,
        chunk: int | None = None,
        autocast: torch.dtype | None = None,
        batched: bool | None = None,
        fast: bool = True,
        progress: bool | None = None,
        nonfinite: str = "raise",
    ) -> None:
        self.evaluation = as_evaluation(evaluate)
        if statistics not in ("interpolate", "recompute"):
            raise ValueError(f"statistics must be 'interpolate' or 'recompute', got {statistics!r}")
        if nonfinite not in ("raise", "keep"):
            raise ValueError(f"nonfinite must be 'raise' or 'keep', got {nonfinite!r}")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        if batched and not fast:
            raise ValueError("fast=False evaluates one point after the other, which batched=True contradicts")
        if not self.evaluation.shared and subject.replicas is None:
            raise ValueError("shared=False gives every replica other data, but the states have no replicas")
        self.subject = subject
        self.points = points
        self.chunk = chunk
        self.progress = progress
        self.nonfinite = nonfinite
        self.calibration = self._calibration(calibration) if statistics == "recompute" else None
        self.loop = Loop(subject, points, autocast)
        self.runner = Tracer(self.loop, batched) if fast else self.loop

    def _calibration(self, data: Any) -> Evaluation:
        if data is None and isinstance(self.evaluation, Evaluation):
            return self.evaluation
        if data is None:
            raise ValueError("statistics='recompute' with a function needs calibration=, the data to measure them on")
        return data if isinstance(data, Evaluation) else over(data, error_rate)

    # ── all points ───────────────────────────────────────────────────────────────────────────────

    def run(self, labels: Sequence[str], stacklevel: int = 3) -> tuple[tuple[str, ...], list[Tensor]]:
        """The metrics' names and, for each line, float64 values of shape (metrics, [replicas,] points).

        Args:
            labels: the names of a line's points, for error messages.
            stacklevel: of a warning; 3 is the caller of the function that called this one.
        """
        totals: list[Values] = [{} for _ in self.points]
        examples = 0
        with self.subject.evaluating(), torch.no_grad():
            self._recompute()
            size = self._batch_size()
            with self._bar(size) as advance:
                for batch in self.evaluation.batches(self.subject.device, size):
                    weight = self.evaluation.size(batch)
                    for total, values in zip(totals, self._pass(batch, advance), strict=True):
                        for name, value in values.items():
                            total[name] = total.get(name, 0.0) + weight * value.double()
                    examples += weight
        if self.runner.obstacle:
            message = f"points were evaluated one by one, which is slower: {self.runner.obstacle}"
            warnings.warn(message, stacklevel=stacklevel)
        names = tuple(totals[0])
        means = [torch.stack([total[name] / examples for name in names]).cpu() for total in totals]
        if self.nonfinite == "raise":
            for one in means:
                _refuse_nonfinite(one, names, labels)
        return names, means

    def cost(self) -> Cost:
        """Time one batch, after a warm-up, and multiply by the number of batches."""
        with self.subject.evaluating(), torch.no_grad():
            size = self._batch_size()
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
        return Cost(sum(map(len, self.points)), batches, whole, seconds, self.chunk or 1)

    def _synchronise(self) -> None:
        if self.subject.device.type == "cuda":
            torch.cuda.synchronize(self.subject.device)

    def _pass(self, batch: Any, advance: Callable[[int], Any]) -> Iterator[Values]:
        """One batch through every point of every line; metrics by name, ([R,] P)."""
        for number in range(len(self.points)):
            pieces: list[Values] = []
            for rows in self._rows(number, self.evaluation, batch):
                pieces.append(self.runner.measure(self.evaluation.measure, number, rows, batch, self.evaluation.shared))
                advance(len(rows))
            yield {name: torch.cat([piece[name] for piece in pieces], -1) for name in pieces[0]}

    # ── batch-norm statistics ────────────────────────────────────────────────────────────────────

    def _recompute(self) -> None:
        """Running means and variances of every point, averaged over the calibration batches."""
        norms = batch_norms(self.subject.model)
        if self.calibration is None or not norms:
            return
        with by_batch(norms):
            found = {number: self._statistics(number, norms, self.calibration) for number in range(len(self.points))}
        self.loop.statistics = found

    def _statistics(self, number: int, norms: Any, calibration: Evaluation) -> Values:
        def measure(model: Callable[..., Any], batch: Any) -> Values:
            return observe(norms, lambda: calibration.forward(model, batch))

        replicas_first = int(self.subject.replicas is not None)
        totals: dict[str, Any] = {}
        examples = 0
        for batch in calibration.batches(self.subject.device, None):
            weight = calibration.size(batch)
            pieces = [
                self.runner.measure(measure, number, rows, batch, calibration.shared)
                for rows in self._rows(number, calibration, batch)
            ]
            for name in pieces[0]:
                value = torch.cat([piece[name] for piece in pieces], replicas_first)
                totals[name] = totals.get(name, 0.0) + weight * value
            examples += weight
        means = {name: total / examples for name, total in totals.items()}
        return {name: x.transpose(0, 1) if replicas_first else x for name, x in means.items()}

    # ── memory and progress ──────────────────────────────────────────────────────────────────────

    def _batch_size(self) -> int | None:
        """Examples at once, where the evaluation leaves this open: as many as fit for all points together."""
        evaluation = self.evaluation
        if self.runner is self.loop or not isinstance(evaluation, Evaluation) or not evaluation.divisible:
            return None
        probe = next(iter(evaluation.batches(self.subject.device, 32)))
        each = self._largest_activation(evaluation, probe) / evaluation.size(probe)
        room = _CACHE_BYTES if self.subject.device.type == "cpu" else _memory_budget(self.subject.device) // 4
        together = [len(points) for number, points in enumerate(self.points) if self.runner.together(number)]
        return max(64, min(int(room / max(each * max(together, default=1), 1)), 4096))

    def _rows(self, number: int, evaluation: Evaluation | Function, batch: Any) -> Iterator[Tensor]:
        """A line's points in chunks that fit into memory: their weights, and three of the largest activations."""
        rows = torch.arange(len(self.points[number]))
        if not self.runner.together(number):
            yield rows
            return
        if self.chunk is None:
            each = self.points[number].bytes_per_point + 3 * self._largest_activation(evaluation, batch)
            self.chunk = max(1, min(_memory_budget(self.subject.device) // max(each, 1), max(map(len, self.points))))
        yield from torch.split(rows, self.chunk)

    def _largest_activation(self, evaluation: Evaluation | Function, batch: Any) -> int:
        """Bytes of the largest output of a layer for one point and this batch, all replicas together."""
        sizes = [0]

        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            sizes.append(sum(x.numel() * x.element_size() for x in tensors(output)))

        hooks = [m.register_forward_hook(note) for m in self.subject.model.modules() if not list(m.children())]
        try:
            self.loop.measure(evaluation.measure, 0, torch.tensor([0]), batch, evaluation.shared)
        finally:
            for hook in hooks:
                hook.remove()
        return max(sizes) * (self.subject.replicas or 1)

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
        total = None if batches is None else batches * sum(map(len, self.points))
        disable = None if self.progress is None else not self.progress
        with tqdm(total=total, desc="landscape", unit="point", disable=disable) as bar:
            yield bar.update


def _memory_budget(device: torch.device) -> int:
    """Bytes that points evaluated at once may take."""
    return int(torch.cuda.mem_get_info(device)[0]) // 4 if device.type == "cuda" else 1 << 28


def _refuse_nonfinite(values: Tensor, names: Sequence[str], labels: Sequence[str]) -> None:
    bad = ~values.isfinite()
    if not bool(bad.any()):
        return
    metric = names[int(bad.flatten(1).any(1).nonzero()[0])]
    points = bad.flatten(0, -2).any(0).nonzero().flatten().tolist()
    raise FloatingPointError(
        f"{metric} is NaN or infinite at {len(points)} of {len(labels)} points, first at {labels[points[0]]}: "
        f"lower the range, recompute batch-norm statistics, or pass nonfinite='keep' to see the rest"
    )
