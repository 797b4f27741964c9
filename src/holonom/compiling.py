"""A function's own place in the compiler's memory."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def own(function: F, name: str | None = None) -> F:
    """A copy with code of its own: the compiler keeps its programs, and counts their number, per code object."""
    assert isinstance(function, types.FunctionType)
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        name or function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy  # type: ignore[return-value]
