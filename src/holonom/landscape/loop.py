"""The reference: for every point, put its state into the model and call the evaluation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from .points import Points
from .states import Subject

Values = dict[str, Tensor]
Model = Callable[..., Any]
Measure = Callable[[Model, Any], Values]
Bind = Callable[[Values, int], Model]


class Loop:
    """Evaluates points one after another: the specification of every landscape, used with ``fast=False``.

    The tracer (:class:`._tracer.Tracer`) has the same methods and must return the same values, to rounding.

    Attributes:
        points: the lines, planes or curves to evaluate, by number.
        statistics: by number, recomputed batch-norm statistics, (P, [R,] …), which replace those of the states.
        obstacle: why points could not be evaluated together; the loop never tries to.
    """

    obstacle: str | None = None

    def __init__(self, subject: Subject, points: list[Points], autocast: torch.dtype | None) -> None:
        self.subject = subject
        self.points = points
        self.autocast = autocast
        self.statistics: dict[int, Values] = {}

    def together(self, number: int) -> bool:
        """Whether one call of ``measure`` evaluates many points at once."""
        return False

    def measure(
        self, measure: Measure, number: int, rows: Tensor, batch: Any, shared: bool, bind: Bind | None = None
    ) -> Values:
        """``measure(model, batch)`` at some points; every result is ([R,] rows, …).

        Args:
            shared: False if ``batch`` has one part for every replica, in front.
            bind: (state, replica) → the model with this state; by default :meth:`bind`.
        """
        replicas = self.subject.replicas
        bind = bind or self.bind
        found: list[Values] = []
        for row in rows.tolist():
            whole = self.state(number, row)
            for i in range(replicas or 1):
                state = whole if replicas is None else {name: x[i] for name, x in whole.items()}
                found.append(measure(bind(state, i), batch if shared else [x[i] for x in batch]))
        stacked = {name: torch.stack([values[name] for values in found]) for name in found[0]}
        if replicas is None:
            return stacked
        return {name: x.reshape(len(rows), replicas, *x.shape[1:]).transpose(0, 1) for name, x in stacked.items()}

    def state(self, number: int, row: int) -> Values:
        """One point. Fixed buffers are copied: a model may write to them, and these are the caller's."""
        points = self.points[number]
        fixed = {name: x.clone() if name in self.subject.buffers else x for name, x in points.fixed.items()}
        recomputed = {name: x[row] for name, x in self.statistics.get(number, {}).items()}
        return fixed | points.moving(points.coefficients[row]) | recomputed

    def bind(self, state: Values, replica: int = 0) -> Model:
        """The model with another state, to be called like the model. The model's tensors are not written."""
        state = state | {name: state[first] for name, first in self.subject.tied.items() if first in state}

        def model(*args: Any, **kwargs: Any) -> Any:
            with self.precision():
                return functional_call(self.subject.model, state, args, kwargs, tie_weights=False)

        return model

    def precision(self) -> Any:
        return torch.autocast(self.subject.device.type, self.autocast) if self.autocast else nullcontext()
