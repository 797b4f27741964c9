"""What a run costs, before it starts: the body of an experiment with every training replaced by a few timed steps.

A plan must not take long itself. So steps are timed as they are without a compiler, trainings that differ in numbers
alone are timed once, and a step that takes too long is given up.
"""

from __future__ import annotations

import math
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from .._training.stepper import Compiled, Stepper
from ..batches import Batches
from ..ensemble import Ensemble, Loss
from ..training import Evaluate, worth_compiling
from .pieces import WHOLE, Piece
from .reproduce import prepare
from .run import Array, Fit, Run

WARM_UP, LEAST, ENOUGH = 3, 10, 0.2  # steps, steps, seconds of a measurement
TOO_LONG = 1.0  # seconds of a step on a CPU
EXACT, AT_MOST, MORE = "", "at most ", "more than "


class Part(NamedTuple):
    """A training: how many runs at once, how many steps, and the seconds of all; NaN where they were not measured.

    ``bound``: AT_MOST if the run compiles these steps, MORE if the timed step was given up.
    """

    title: str
    runs: int
    steps: int
    seconds: float
    unit: str = "step"
    bound: str = EXACT


class Plan(NamedTuple):
    """``complete`` is False if what follows the last part depends on its result, so that it is not listed."""

    id: str
    parts: list[Part]
    complete: bool
    device: torch.device

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts if math.isfinite(part.seconds))


def plan(
    id: str,
    *,
    scale: str = "ci",
    replicas: int | None = None,
    device: str | None = None,
    seed: int = 0,
    root: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    piece: Piece = WHOLE,
) -> Plan:
    """The trainings of one experiment, or of a piece, with an estimate of their time on this device; writes nothing.

    A few steps of every training are timed, uncompiled. What is done with the networks during training and after it
    (test data, lines, contours, figures) is left out.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study, run, settings, _ = prepare(id, scale, replicas, device, Path(folder), seed, root, overrides)
        planned = PlannedRun(
            run.id, run.scale, run.replicas, seed, run.device, run.folder, root, quiet=True, piece=piece
        )
        complete = True
        try:
            study.body(planned, SimpleNamespace(**settings))
        except _Trained:
            pass
        except _Unlisted:
            complete = False
    return Plan(id, planned.parts, complete, run.device)


class _Trained(Exception):
    """The body has come to its results, so there is nothing more to train."""


class _Unlisted(Exception):
    """The body cannot go on without the result of a part."""


class _Timed(Exception):
    """A part was measured."""


class _GivenUp(Exception):
    """What was timed takes too long."""


class _GiveUp(TorchFunctionMode):
    """Ends what runs inside after TOO_LONG, before the next operation; a backward pass is one."""

    def __init__(self) -> None:
        super().__init__()
        self._end = time.perf_counter() + TOO_LONG

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.perf_counter() > self._end:
            raise _GivenUp
        return function(*args, **(kwargs or {}))


def timed(call: Callable[[], object], device: torch.device) -> tuple[float, str]:
    """The seconds of a call. On a CPU it is given up if it takes too long: these seconds, and MORE."""
    started = time.perf_counter()
    with suppress(_GivenUp), _GiveUp() if device.type == "cpu" else nullcontext():
        call()
    seconds = time.perf_counter() - started
    return seconds, MORE if device.type == "cpu" and seconds > TOO_LONG else EXACT


def _stand_in(shape: tuple[int, ...]) -> Array:
    """Numbers that a body can go on with."""
    numbers: Array = 1 + 0.01 * np.random.default_rng(0).normal(size=shape)
    return numbers


class _Curves(dict[str, Array]):
    """Numbers for any metric, since nothing was evaluated."""

    def __init__(self, times: int, runs: int) -> None:
        super().__init__()
        self._shape = times, runs

    def __missing__(self, metric: str) -> Array:
        return _stand_in(self._shape)


class PlannedFit(Fit):
    """A fit whose metrics are made up."""

    def split(self, names: Sequence[str]) -> dict[str, Fit]:
        share = self.ensemble.replicas // len(names)
        return {name: PlannedFit.of(name, self.steps, self.ensemble, share) for name in names}

    @classmethod
    def of(cls, arm: str, steps: Array, ensemble: Ensemble, runs: int) -> PlannedFit:
        return cls(arm, steps, _Curves(len(steps), runs), ensemble, 0.0)


class _Rate(NamedTuple):
    """Seconds of the first step, and of those after it; MORE if it was given up."""

    first: float
    later: float
    bound: str = EXACT


@dataclass
class PlannedRun(Run):
    """Trains a few steps where a run trains all, and ends where the results begin."""

    parts: list[Part] = field(default_factory=list)
    _made_up: bool = False  # whether the part in progress has a stand-in
    _rates: dict[Any, _Rate] = field(default_factory=dict)  # of trainings that differ in numbers alone

    def fit(
        self,
        arm: str,
        ensemble: Ensemble,
        optimizer: Optimizer,
        loss: Loss,
        batches: Batches,
        steps: int,
        evaluate: Evaluate,
        evaluations: int = 40,
        after_epoch: Callable[[int], None] | None = None,
        compiled: Compiled | None = None,
        checkpoint_every: int | None = None,
    ) -> Fit:
        """Numbers in place of all metrics; some steps are timed, unless those of a training like this one were."""
        if compiled is None:
            compiled = worth_compiling(ensemble, steps)
        model = _model_form(ensemble, loss, batches)
        key = model, _optimizer_form(optimizer)
        rate = self._rates.get(model) or self._rates.get(key)
        if rate is None:
            ensemble.train()
            rate = self._measure(Stepper(ensemble, optimizer, loss, batches, False), batches.order(0), steps)
            self._rates[model if rate.bound == MORE else key] = rate  # given up before it was the optimizer's turn
        bound = AT_MOST if compiled and rate.bound == EXACT else rate.bound
        seconds = rate.first + steps * rate.later
        self.parts.append(Part(arm, ensemble.replicas, steps, seconds, bound=bound))
        marks = sorted({round(steps * k / evaluations) for k in range(evaluations + 1)})
        return PlannedFit.of(arm, np.array(marks), ensemble, ensemble.replicas)

    def _measure(self, stepper: Stepper, order: Tensor, steps: int) -> _Rate:
        def take(count: int) -> float:
            started = time.perf_counter()
            stepper.run(order[:count])
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            return time.perf_counter() - started

        first = 0.0
        if self.device.type == "cpu":
            gradient, bound = timed(lambda: stepper.differentiate(stepper.loss, order[0]), self.device)
            if bound == MORE:
                return _Rate(0.0, gradient, MORE)
            first = take(1)
            if first > ENOUGH:
                return _Rate(0.0, first)
        count = min(LEAST, steps, len(order))
        first += take(min(WARM_UP, count))
        done, seconds = 0, 0.0
        while seconds < ENOUGH and done < steps:
            seconds += take(count)
            done += count
        return _Rate(first, seconds / max(1, done))

    def once(self, name: str, make: Callable[[], Array], shape: tuple[int, ...] | None = None) -> Array:
        """Measured by its progress; ones in place of its result."""
        self._made_up = shape is not None
        try:
            result = np.asarray(make())
        except _Timed:
            assert shape is not None
            return _stand_in(shape)
        finally:
            self._made_up = False
        return result

    def each(self, parts: Mapping[str, Callable[[], Array]], shape: tuple[int, ...]) -> dict[str, Array]:
        """This piece's parts measured, each of them one run; the others' stood in for."""
        before = len(self.parts)
        found = {
            name: self.once(name, make, shape) if self.piece.has(place) else _stand_in(shape)
            for place, (name, make) in enumerate(parts.items())
        }
        self.parts[before:] = [part._replace(runs=1) for part in self.parts[before:]]
        return found

    @contextmanager
    def progress(self, title: str, total: int, unit: str = "step") -> Iterator[Callable[[int, int, Any], None]]:
        if unit != "step":
            self.parts.append(Part(title, self.replicas, total, math.nan, unit))
            raise _Unlisted
        first: list[tuple[int, float]] = []

        def show(done: int, total_: int, history: Any = None) -> None:
            now = time.perf_counter()
            if not first:
                first.append((done, now))
                if done < total:
                    return
            before, started = first[0]
            if now - started >= ENOUGH or done >= total:
                rate = (now - started) / max(1, done - before)
                self.parts.append(Part(title, self.replicas, total, total * rate))
                raise _Timed if self._made_up else _Unlisted

        yield show

    def save_curves(self, fits: Any) -> None:
        raise _Trained

    @contextmanager
    def figure(self, name: str, caption: str, colours: int | None = None, **options: Any) -> Iterator[Any]:
        raise _Trained
        yield


# ── what makes two trainings alike ────────────────────────────────────────────────────────────────


def _model_form(ensemble: Ensemble, loss: Loss, batches: Batches) -> tuple[Any, ...]:
    """Of the gradients of a step: shapes, and choices that are no numbers."""
    choices = [
        (type(module).__name__, *((k, v) for k, v in vars(module).items() if isinstance(v, (bool, str))))
        for module in ensemble.template.modules()
    ]
    shapes = [(name, p.shape, p.dtype, p.requires_grad) for name, p in ensemble.named_parameters()]
    data = type(batches).__name__, batches.shared, batches.order(0).shape[1:]
    inputs = [part.shape for part in batches.take(batches.order(0)[0])]
    return getattr(loss, "__qualname__", repr(loss)), *choices, *shapes, *data, *inputs


def _optimizer_form(optimizer: Optimizer) -> tuple[Any, ...]:
    """Of its groups everything but numbers, of which it counts whether they are zero."""
    groups = [tuple((name, _form(value)) for name, value in group.items()) for group in optimizer.param_groups]
    return type(optimizer).__name__, *groups


def _form(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value != 0
    if isinstance(value, (list, tuple)):
        return tuple(_form(one) for one in value)
    return re.sub(r"[-\d.e+]+", "#", str(value))
