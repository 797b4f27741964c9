"""A compiled function that is called again and again with nothing new but what its tensors hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._dynamo import exc

from .compiling import Program, telling

# What keeps a function from being one program. The last one has two names, by torch's version.
_NOT_ONE = (
    exc.Unsupported,
    *(getattr(exc, name) for name in ("FailOnRecompileLimitHit", "FailOnCacheLimitHit") if hasattr(exc, name)),
)

Function = Callable[[], dict[str, Tensor]]


class Known(NamedTuple):
    """A program, what it was called with, and where among its outputs the function's results stand."""

    program: Program
    inputs: list[Any]
    places: dict[str, int]

    def is_like(self, other: Known | None) -> bool:
        """Whether the other one was called the very same way."""
        if other is None or self.program is not other.program or self.places != other.places:
            return False
        return all(a is b for a, b in zip(self.inputs, other.inputs, strict=True))


class Repeated:
    """A compiled function without arguments that goes straight to its program once it is known.

    Before every call ``torch.compile`` asks all that the function read, and each tensor, whether they are still
    what the program was made for. For a small model that takes longer than the program. Here calls
    ask until two in a row found the same program and the same tensors, and again after :meth:`ask_again`, then
    until one finds what was known before. What changes from call to call in other ways than in its tensors' contents
    is asked every time, and so is what does not become one program.

    Args:
        function: returns the tensors it made by name; none, if it works on others.
        options: of the compiler.
    """

    def __init__(self, function: Function, options: dict[str, Any] | None = None) -> None:
        self._calls: list[tuple[Program, list[Any], Any]] = []
        self._last: Known | None = None
        self._known: Known | None = None
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
        except _NOT_ONE:  # raised before anything ran
            self._asking = self._compiled(fullgraph=False)
            self._single, self._last = False, None
            result = self._asking()
        if self._single:
            found = self._found(result)
            if found is not None and found.is_like(self._last):
                self._known = found
            self._last = found
        self._calls.clear()
        return result

    def _found(self, result: dict[str, Tensor]) -> Known | None:
        """The call just made, if all came of it."""
        if not self._calls:  # the compiler is switched off
            return None
        program, inputs, outputs = self._calls[-1]
        places = {id(x): place for place, x in enumerate(outputs)}
        if not all(id(x) in places for x in result.values()):
            return None
        return Known(program, inputs, {name: places[id(x)] for name, x in result.items()})
