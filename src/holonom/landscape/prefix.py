"""What comes in front of the moving block is the same at every point: run once, then remembered.

Calls are numbered. The first point runs all of them and keeps the results of those before the first one that a
moving tensor enters. Another point that makes the same calls, with the same arguments, takes these results; one that
does not raises :class:`Deviation` and is run again with nothing remembered.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from .calls import LOOKS, Deviation, hollow, tensors
from .folding import Folded, Folding
from .unseen import Unseen

_SETS_SOMETHING = ("_set", "set_", "__set__", "manual_seed")  # how functions begin that must be called, not remembered


class Slot:
    """A tensor that a remembered call returned, as long as somebody wants it; then its shape alone."""

    def __init__(self, x: Tensor) -> None:
        self.found: Callable[[], Tensor | None] = weakref.ref(x)
        self.tensor = hollow(x) if type(x) is Tensor and x.is_floating_point() else x
        self.version = 0

    def settle(self) -> None:
        """The first point is done: what is still alive may be read again."""
        x = self.found()
        self.tensor = self.tensor if x is None else x


class Outside:
    """A tensor that comes from elsewhere: at every point the same one, unchanged."""

    def __init__(self, x: Tensor) -> None:
        self.found = weakref.ref(x)
        self.version = _version(x)

    def is_(self, x: Any) -> bool:
        return isinstance(x, Tensor) and self.found() is x and _version(x) == self.version


class Prefix:
    """The results that the points of one batch share; ``at(moving)`` is the mode of one point."""

    def __init__(self) -> None:
        self.results: list[tuple[Any, list[Any], Any]] = []  # function, what it was given, what it returned
        self.complete = False
        self.folding = Folding()
        self._slots: dict[int, Slot] = {}
        self._wanted: list[Tensor] = []
        self._ended = False

    def at(self, moving: Iterable[Tensor]) -> Point:
        return Point(self, {id(x) for x in moving})

    def note(self, function: Any, given: Any, result: Any) -> None:
        """A call in front. Its results live as long as they would without us."""
        self.results.append((function, [self._known(x) for x in tree_leaves(given)], tree_map(self._slot, result)))

    def note_behind(self, given: Any) -> None:
        """A call behind: what it reads of the results is kept."""
        if not self._ended:
            self._ended = True
            for slot in self._slots.values():
                x = slot.found()
                slot.version = 0 if x is None else _version(x)
        self._wanted += [x for x in tensors(given) if isinstance(self._known(x), Slot)]

    def finish(self, unseen: bool) -> None:
        """The first point is done."""
        overwritten = self._ended and any(
            (x := slot.found()) is not None and _version(x) != slot.version for slot in self._slots.values()
        )
        if overwritten or unseen:
            self.forget()
        for slot in self._slots.values():
            slot.settle()
        self._wanted.clear()
        self.complete = True
        if unseen:
            self.folding.usable = False
        else:
            self.folding.finish()

    def forget(self) -> None:
        """Points to come run as the model says."""
        self.results, self._slots = [], {}

    def recall(self, number: int, function: Any, given: Any) -> Any:
        """The result of a call that was made at the first point, too."""
        noted, leaves, result = self.results[number]
        found = tree_leaves(given)
        if noted != function or len(found) != len(leaves) or not all(map(_same, leaves, found)):
            raise Deviation
        return tree_map(lambda x: x.tensor if isinstance(x, Slot) else x, result)

    def _known(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        slot = self._slots.get(id(x))
        return slot if slot is not None and slot.found() is x else Outside(x)

    def _slot(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        known = self._known(x)
        if not isinstance(known, Slot):
            known = self._slots[id(x)] = Slot(x)
        return known


class Point(TorchFunctionMode):
    """One point's forward: takes what is remembered, remembers what is not yet, and folds what can be folded."""

    def __init__(self, prefix: Prefix, moving: set[int]) -> None:
        super().__init__()
        self.prefix = prefix
        self.moving = moving
        self.number = 0
        self.behind = False
        self.folded = Folded(prefix.folding) if prefix.folding.usable else None
        self.unseen = Unseen()

    def deviated(self) -> None:
        """To be run again, with nothing remembered; if that was so already, as the model says."""
        prefix = self.prefix
        prefix.folding.usable &= bool(prefix.results)
        prefix.forget()
        self.number, self.behind = 0, False
        self.folded = Folded(prefix.folding) if prefix.folding.usable else None

    def __enter__(self) -> Point:
        if not self.prefix.complete:
            self.unseen.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if not self.prefix.complete:
            self.unseen.__exit__(*error)  # type: ignore[no-untyped-call]

    def finish(self, outputs: Any) -> None:
        if self.folded is not None:
            self.folded.finish(outputs)
            self.folded = None  # another forward of the same point was not noted
        if not self.prefix.complete:
            self.prefix.finish(self.unseen.happened)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with self.unseen.seen():
            return self._call(func, args, kwargs or {})

    def _call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in LOOKS:
            return func(*args, **kwargs)
        prefix, given = self.prefix, (args, kwargs)
        number, self.number = self.number, self.number + 1
        if not self.behind:
            if prefix.complete and number < len(prefix.results):
                return prefix.recall(number, func, given)
            self.behind = prefix.complete or self._moves(func, given)
        if self.folded is not None:
            return self.folded.call(number, func, args, kwargs)
        noting = not prefix.complete
        if noting and self.behind:
            prefix.note_behind(given)
        result = func(*args, **kwargs)
        if noting:
            prefix.folding.note(func, args, kwargs, result)
            if not self.behind:
                prefix.note(func, given, result)
        return result

    def _moves(self, func: Callable[..., Any], given: Any) -> bool:
        """Whether a call cannot be one that all points share."""
        if getattr(func, "__name__", "").startswith(_SETS_SOMETHING):
            return True
        return any(id(x) in self.moving or torch._C._functorch.is_functorch_wrapped_tensor(x) for x in tensors(given))


def _same(noted: Any, x: Any) -> bool:
    if isinstance(noted, Slot):
        return noted.tensor is x
    if isinstance(noted, Outside):
        return noted.is_(x)
    if noted is x:
        return True
    try:
        return type(noted) is type(x) and bool(noted == x)
    except Exception:  # things that cannot be compared
        return False


def _version(x: Tensor) -> int:
    """How often it was written to; tensors of inference mode do not count."""
    return 0 if x.is_inference() else x._version
