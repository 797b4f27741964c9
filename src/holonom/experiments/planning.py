"""What a run costs, before it starts: the body of an experiment with every training replaced by a few timed steps."""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from .._training.stepper import Compiled, Stepper
from ..batches import Batches
from ..ensemble import Ensemble, Loss
from ..training import Evaluate, worth_compiling
from .pieces import WHOLE, Piece
from .reproduce import prepare
from .run import Array, Fit, Run

WARM_UP, LEAST, ENOUGH = 3, 10, 0.5  # steps, steps, seconds of a measurement


class Part(NamedTuple):
    """A training: how many runs at once, how many steps, and the seconds of all; NaN where they were not measured."""

    title: str
    runs: int
    steps: int
    seconds: float
    unit: str = "step"


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

    A few steps of every training are timed, and compiled before where the run compiles them. What is done with the
    trained networks (lines, contours, figures) is left out.
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


def _stand_in(shape: tuple[int, ...]) -> Array:
    """Numbers that a body can go on with."""
    numbers: Array = 1 + 0.01 * np.random.default_rng(0).normal(size=shape)
    return numbers


@dataclass
class PlannedRun(Run):
    """Trains a few steps where a run trains all, and ends where the results begin."""

    parts: list[Part] = field(default_factory=list)
    _made_up: bool = False  # whether the part in progress has a stand-in

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
        """The start's metrics in place of all; steps are timed as the run takes them, compiled where it compiles."""
        ensemble.eval()
        with torch.no_grad():
            started = time.perf_counter()
            metrics = {name: value.double().cpu().numpy() for name, value in evaluate(ensemble).items()}
            looking = time.perf_counter() - started
        ensemble.train()
        if compiled is None:
            compiled = worth_compiling(ensemble, steps)
        stepper = Stepper(ensemble, optimizer, loss, batches, compiled)
        seconds = self._seconds(stepper, batches.order(0), steps) + (evaluations + 1) * looking
        self.parts.append(Part(arm, ensemble.replicas, steps, seconds))
        marks = sorted({round(steps * k / evaluations) for k in range(evaluations + 1)})
        curves = {name: np.tile(np.nan_to_num(values), (len(marks), 1)) for name, values in metrics.items()}
        return Fit(arm, np.array(marks), curves, ensemble, 0.0)

    def _seconds(self, stepper: Stepper, order: Tensor, steps: int) -> float:
        """Of all steps, the compilation before the first among them."""

        def take(count: int) -> float:
            started = time.perf_counter()
            stepper.run(order[:count])
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            return time.perf_counter() - started

        count = min(LEAST, steps, len(order))
        first = take(min(WARM_UP, count))
        done, seconds = 0, 0.0
        while seconds < ENOUGH and done < steps:
            seconds += take(count)
            done += count
        return first + steps * seconds / max(1, done)

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
