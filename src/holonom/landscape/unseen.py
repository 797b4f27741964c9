"""Whether a model computes behind our back: in compiled or scripted code that no function mode sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Unseen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations that are not part of a call that was :meth:`seen`.

    Attributes:
        happened: there was one, so what a model did is not known from its calls.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.happened = False
        self._depth = 0

    @contextmanager
    def seen(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.happened |= self._depth == 0
        return func(*args, **(kwargs or {}))
