"""A compiled function that is called again and again with nothing new but what its tensors hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported

from .compiling import Program, telling

Function = Callable[[], dict[str, Tensor]]


class Repeated:
    """A compiled function without arguments that goes straight to its program once it is known.

    Before every call ``torch.compile`` asks all that the function read, and each tensor, whether they are still
    what the program was made for. For a small model that takes longer than the program. Here the first
    call asks, and the next one after :meth:`ask_again`. What does not become one program is asked every time.

    Args:
        function: returns the tensors it made by name; none, if it works on others.
        options: of the compiler.
    """

    def __init__(self, function: Function, options: dict[str, Any] | None = None) -> None:
        self._calls: list[tuple[Program, list[Any], Any]] = []
        self._known: tuple[Program, list[Any], dict[str, int]] | None = None
        self._backend = telling(self._calls, options)
        self._function = function
        self._asking = self._compiled(fullgraph=True)
        self._single = True

    def _compiled(self, fullgraph: bool) -> Function:
        return torch.compile(self._function, fullgraph=fullgraph, dynamic=False, backend=self._backend)

    def ask_again(self) -> None:
        """Something may have changed: other tensors, modes or numbers."""
        self._known = None

    def __call__(self) -> dict[str, Tensor]:
        if self._known is None:
            return self._ask()
        program, inputs, places = self._known
        outputs = program(*inputs)
        return {name: outputs[place] for name, place in places.items()}

    def _ask(self) -> dict[str, Tensor]:
        try:
            result = self._asking()
        except Unsupported:  # raised before anything ran
            self._asking = self._compiled(fullgraph=False)
            self._single = False
            result = self._asking()
        if self._single:
            program, inputs, outputs = self._calls[-1]
            places = {id(x): place for place, x in enumerate(outputs)}
            if all(id(x) in places for x in result.values()):
                self._known = program, inputs, {name: places[id(x)] for name, x in result.items()}
        self._calls.clear()
        return result
