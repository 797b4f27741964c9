"""Calls of a compiled step that go straight to its program.

Before every call ``torch.compile`` asks each tensor whether it is still of the kind the program was made for. A step's
tensors are the same from one call to the next, all but the gradients, whose kind is their parameters'; for a model of a
million weights the questions would cost as much as half the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .compiling import Program, telling
from .constraints.base import Phase
from .flows import Numbers
from .lists import Tensors

Function = Callable[[Phase, Tensors, Sequence[Numbers], Sequence[Tensors], Tensor | None], None]
Calls = dict[Any, "Call"]


@dataclass
class Call:
    """What a program is called with: its inputs, and where among them stand those that change from call to call."""

    program: Program
    inputs: list[Any]
    places: list[int | None]
    numbers: Sequence[Numbers]
    kinds: list[Any]

    def fits(self, numbers: Sequence[Numbers]) -> bool:
        if numbers is not self.numbers:
            if _kinds(numbers) != self.kinds:
                return False
            self.numbers = numbers
        return True

    def again(self, changing: list[Tensor]) -> None:
        for place, x in zip(self.places, changing, strict=True):
            if place is not None:
                self.inputs[place] = x
        try:
            self.program(*self.inputs)
        finally:
            self.forget()

    def forget(self) -> None:
        """Gradients are the user's to free."""
        for place in self.places:
            if place is not None:
                self.inputs[place] = None


class Straight:
    """A compiled function of a phase, forces, numbers, noises and whether to skip.

    A phase of vectors takes forces and noises as vectors, whatever their shapes; programs know addresses only.

    It goes straight to its program where ``calls``, which the caller keeps as long as the phase's tensors stay what
    they are, knows a call with this phase, where forces and noises are plain and contiguous, and numbers of the same
    kinds. Otherwise it asks as usual.
    """

    def __init__(self, function: Function, dynamic: bool | None, options: dict[str, Any] | None) -> None:
        self._asked: list[tuple[Program, list[Any], Any]] = []
        self._asking = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=telling(self._asked, options))

    def __call__(
        self,
        phase: Phase,
        force: Tensors,
        numbers: Sequence[Numbers],
        noises: Sequence[Tensors],
        skip: Tensor | None,
        calls: Calls | None,
    ) -> None:
        if not all(type(x) is Tensor and x.is_contiguous() for xs in (force, *noises) for x in xs):
            calls = None
        key = (id(self), id(phase))
        if calls is not None and key in calls and calls[key].fits(numbers):
            calls[key].again(_listed(force, numbers, noises, skip))
            return
        if all(q.ndim == 1 for q in phase.q):
            force, noises = _vectors(force), [_vectors(xs) for xs in noises]
        self._asking(phase, force, numbers, noises, skip)
        if calls is not None:
            self._learn(calls, key, _listed(force, numbers, noises, skip), numbers)
        self._asked.clear()

    def _learn(self, calls: Calls, key: Any, changing: list[Tensor], numbers: Sequence[Numbers]) -> None:
        """Remember the call just made."""
        asked = self._asked[-1:]
        # A tensor given twice is one input, and could be two in the next call.
        if asked and len({id(x) for x in changing}) == len(changing):
            program, inputs, _ = asked[0]  # a size that varies is an input as well, but not for one phase
            places = {id(x): place for place, x in enumerate(inputs)}
            call = Call(program, inputs, [places.get(id(x)) for x in changing], numbers, _kinds(numbers))
            call.forget()
            calls[key] = call


def _vectors(xs: Tensors) -> Tensors:
    return [x if x.ndim < 2 else x.reshape(-1) for x in xs]


def _kinds(numbers: Sequence[Numbers]) -> list[Any]:
    return [(x.dtype, x.shape, x.stride()) for values in numbers for x in values if isinstance(x, Tensor)]


def _listed(force: Tensors, numbers: Sequence[Numbers], noises: Sequence[Tensors], skip: Tensor | None) -> list[Any]:
    flat: list[Any] = [*force] if skip is None else [*force, skip]
    for values in numbers:
        flat += values
    for xs in noises:
        flat += xs
    return flat
