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

from .constraints.base import Phase
from .flows import Numbers
from .lists import Tensors

_PHASES = 4  # remembered at most

Function = Callable[[Phase, Tensors, Sequence[Numbers], Sequence[Tensors], Tensor | None], None]


@dataclass
class Call:
    """What a program is called with: its inputs, and where among them stand those that change from call to call."""

    phase: Phase
    program: Callable[..., Any]
    inputs: list[Any]
    places: list[int | None]

    def again(self, changing: list[Tensor]) -> None:
        for place, x in zip(self.places, changing, strict=True):
            if place is not None:
                self.inputs[place] = x
        self.program(*self.inputs)
        self.forget()

    def forget(self) -> None:
        """Gradients are the user's to free."""
        for place in self.places:
            if place is not None:
                self.inputs[place] = None


class Straight:
    """A compiled function of a phase, forces, numbers, noises and whether to skip.

    It goes straight to its program while it is given the very phase of a call that asked, contiguous forces and
    noises, and the program has fixed sizes; otherwise it asks as usual.
    """

    def __init__(self, function: Function, dynamic: bool | None, options: dict[str, Any] | None) -> None:
        self._options = options
        self._asking = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=self._backend)
        self._asked: tuple[Callable[..., Any], list[Any]] | None = None
        self._known: dict[int, Call] = {}

    def __call__(
        self,
        phase: Phase,
        force: Tensors,
        numbers: Sequence[Numbers],
        noises: Sequence[Tensors],
        skip: Tensor | None,
    ) -> None:
        if not all(x.is_contiguous() for xs in (force, *noises) for x in xs):
            self._asking(phase, force, numbers, noises, skip)
            self._asked = None
            return
        changing = _flattened(force, numbers, noises, skip)
        known = self._known.get(id(phase))
        if known is not None and known.phase is phase:
            known.again(changing)
            return
        self._asking(phase, force, numbers, noises, skip)
        self._learn(phase, changing)

    def _backend(self, graph: Any, examples: list[Any]) -> Callable[..., Any]:
        from torch._dynamo import lookup_backend

        inductor: Any = lookup_backend("inductor")
        program = inductor(graph, examples, config_patches=self._options)
        fixed = all(isinstance(x, Tensor) for x in examples)  # a size that varies is an input of its own

        def called(*inputs: Any) -> Any:
            self._asked = (program, list(inputs)) if fixed else None
            return program(*inputs)

        return called

    def _learn(self, phase: Phase, changing: list[Tensor]) -> None:
        """Remember the call just made, for the phases that are in use (two; more where they come and go)."""
        asked, self._asked = self._asked, None
        # A tensor given twice is one input, and could be two in the next call.
        if asked is None or len({id(x) for x in changing}) < len(changing):
            return
        program, inputs = asked
        places = {id(x): place for place, x in enumerate(inputs)}
        call = Call(phase, program, inputs, [places.get(id(x)) for x in changing])
        call.forget()
        if len(self._known) >= _PHASES:
            self._known.clear()
        self._known[id(phase)] = call


def _flattened(force: Tensors, numbers: Sequence[Numbers], noises: Sequence[Tensors], skip: Tensor | None) -> list[Any]:
    flat: list[Any] = [*force] if skip is None else [*force, skip]
    for values in numbers:
        flat += values
    for xs in noises:
        flat += xs
    return flat
