"""What comes in front of the moving block is the same at every point: run once, then remembered.

Calls are numbered. The first point runs all of them and keeps the results of those before the first one that a
moving tensor enters; what Python does up to there cannot depend on the point, so the others may take these results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from .folding import LOOKS, Folded, Folding, hollow, tensors


class Prefix:
    """The results that the points of one batch share; ``at(moving)`` is the mode of one point."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.complete = False
        self.folding = Folding()
        self._own: set[int] = set()
        self._needed: set[int] = set()
        self._spoiled = False

    def at(self, moving: Iterable[Tensor]) -> Point:
        return Point(self, {id(x) for x in moving})

    def note(self, inputs: Any, outputs: Any) -> None:
        """A call behind the prefix: what it read must be kept, and what it overwrote cannot be shared."""
        self._own = self._own or {id(x) for x in tensors(self.results)}
        self._needed |= self._own & {id(x) for x in tensors(inputs)}
        self._spoiled |= any(id(x) in self._own for x in tensors(outputs))

    def finish(self, outputs: Any) -> None:
        """The first point is done. Results that nobody needs keep their shape alone, filled with NaN to be seen."""
        self._needed |= {id(x) for x in tensors(outputs)}
        self.results = [] if self._spoiled else tree_map_only(Tensor, self._trimmed, self.results)
        self.complete = True
        self.folding.finish()

    def _trimmed(self, x: Tensor) -> Tensor:
        if id(x) in self._needed or not x.is_floating_point():
            return x
        return hollow(x)


class Point(TorchFunctionMode):
    """One point's forward: takes what is remembered, remembers what is not yet, and folds what can be folded."""

    def __init__(self, prefix: Prefix, moving: set[int]) -> None:
        super().__init__()
        self.prefix = prefix
        self.moving = moving
        self.number = 0
        self.behind = False
        self.folded = Folded(prefix.folding) if prefix.folding.usable else None

    def deviated(self) -> None:
        """To be run again, as the model says; the points to come need not try."""
        self.number, self.behind, self.folded = 0, False, None
        self.prefix.folding.usable = False

    def finish(self, outputs: Any) -> None:
        if self.folded is not None:
            self.folded.finish(outputs)
            self.folded = None  # another forward of the same point was not noted
        if not self.prefix.complete:
            self.prefix.finish(outputs)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LOOKS:
            return func(*args, **kwargs)
        prefix = self.prefix
        number, self.number = self.number, self.number + 1
        if not self.behind:
            if prefix.complete and number < len(prefix.results):
                return prefix.results[number]
            self.behind = prefix.complete or any(id(x) in self.moving for x in tensors((args, kwargs)))
        if self.folded is not None:
            return self.folded.call(number, func, args, kwargs)
        result = func(*args, **kwargs)
        if not prefix.complete:
            prefix.folding.note(func, args, kwargs, result)
            if self.behind:
                prefix.note((args, kwargs), result)
            else:
                prefix.results.append(result)
        return result
