"""The compiler: a function's own place in its memory, whom it tells of calls, and what to do where it does not work."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., object])
Program = Callable[..., Any]
_said = False


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


def attempted(compiled: Callable[..., Any], other: Callable[..., Any], quietly: bool = False) -> Callable[..., Any]:
    """The compiled function, until the compiler fails at it; from then on the other one.

    It fails before anything is written.
    """
    working = True

    def call(*inputs: Any) -> Any:
        nonlocal working
        if working:
            from torch._dynamo.exc import BackendCompilerFailed  # a second's import that most programs do without

            try:
                return compiled(*inputs)
            except BackendCompilerFailed as error:
                working = False
                if not quietly:
                    say_uncompiled(error)
        return other(*inputs)

    return call


def telling(calls: list[tuple[Program, list[Any], Any]], options: dict[str, Any] | None) -> Callable[..., Program]:
    """The compiler's usual back end, whose programs tell when they are called, with what, and what they return.

    The compiler keeps its back ends for good: this one must not hold weights, nor whoever does.
    """

    def backend(graph: Any, examples: list[Any]) -> Program:
        from torch._dynamo import lookup_backend

        inductor: Any = lookup_backend("inductor")
        program = inductor(graph, examples, config_patches=options)

        def called(*inputs: Any) -> Any:
            outputs = program(*inputs)
            calls.append((program, list(inputs), outputs))
            return outputs

        return called

    return backend


def available() -> bool:
    """Whether everything compiled so far did."""
    return not _said


def say_uncompiled(error: Exception) -> None:
    """Say once that steps stay uncompiled, and why."""
    global _said
    if not _said:
        _said = True
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        warnings.warn(
            f"holonom: torch.compile did not work here ({reason}); such steps run uncompiled, which is "
            f"correct but slower for large models. Install a C++ compiler, or pass fuse=False to silence this.",
            stacklevel=2,
        )
