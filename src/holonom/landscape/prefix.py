"""What comes in front of the moving block is the same at every point: run once, then remembered.

Calls are numbered. The first point runs all of them and keeps the results of those before the first one that a
moving tensor enters; what Python does up to there cannot depend on the point, so the others may take these results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only


class Prefix:
    """The results that the points of one batch share; ``at(moving)`` is the mode of one point."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.complete = False
        self._own: set[int] = set()
        self._needed: set[int] = set()
        self._spoiled = False

    def at(self, moving: Iterable[Tensor]) -> Point:
        return Point(self, {id(x) for x in moving})

    def note(self, inputs: Any, outputs: Any) -> None:
        """A call behind the prefix: what it read must be kept, and what it overwrote cannot be shared."""
        self._own = self._own or {id(x) for x in _tensors(self.results)}
        self._needed |= self._own & {id(x) for x in _tensors(inputs)}
        self._spoiled |= any(id(x) in self._own for x in _tensors(outputs))

    def finish(self, outputs: Any) -> None:
        """The first point is done. Results that nobody needs keep their shape alone, filled with NaN to be seen."""
        self._needed |= {id(x) for x in _tensors(outputs)}
        self.results = [] if self._spoiled else tree_map_only(Tensor, self._trimmed, self.results)
        self.complete = True

    def _trimmed(self, x: Tensor) -> Tensor:
        if id(x) in self._needed or not x.is_floating_point():
            return x
        return torch.full((), torch.nan, dtype=x.dtype, device=x.device).expand(x.shape)


class Point(TorchFunctionMode):
    """One point's forward: takes what is remembered, remembers what is not yet."""

    def __init__(self, prefix: Prefix, moving: set[int]) -> None:
        super().__init__()
        self.prefix = prefix
        self.moving = moving
        self.number = 0
        self.behind = False

    def finish(self, outputs: Any) -> None:
        if not self.prefix.complete:
            self.prefix.finish(outputs)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        prefix = self.prefix
        if not self.behind:
            if prefix.complete and self.number < len(prefix.results):
                self.number += 1
                return prefix.results[self.number - 1]
            self.behind = prefix.complete or any(id(x) in self.moving for x in _tensors((args, kwargs)))
        result = func(*args, **kwargs)
        if not prefix.complete:
            if self.behind:
                prefix.note((args, kwargs), result)
            else:
                prefix.results.append(result)
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]
