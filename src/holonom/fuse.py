"""When and how a step becomes one compiled pass over memory.

A step is a handful of element- or row-wise operations, each of which streams all weights through
memory; compiled, it is a single pass. Compiling takes seconds, so it happens only once a run has
moved enough weights for that to have paid. The rule reads sizes and step counts alone, never a
clock: a resumed run switches at the same step and stays bit-equal.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .constraints.base import Constraint, Phase
from .flows import Numbers, run
from .lists import Tensors

WORTH = 5_000_000_000  # weights × steps after which the time saved exceeds a compiler's run
SMALLEST = 16_384  # elements below which the call costs more than the pass
PACK = 8  # tensors handed to one compiled call: more would compile longer, fewer would call more often

Kernel = Callable[[Phase, Tensors, Sequence[Numbers], Sequence[Tensors]], None]
_broken = False


def worth_it(fuse: bool | None, elements: int, step: int) -> bool:
    """``fuse``: True always, False never, None once it pays."""
    if _broken or fuse is False:
        return False
    return bool(fuse) or elements * step >= WORTH


def available() -> bool:
    """Whether compiling works here, as far as is known."""
    return not _broken


def give_up(error: Exception) -> None:
    """Say once that steps stay uncompiled, and why."""
    global _broken
    if not _broken:
        _broken = True
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        warnings.warn(
            f"holonom: torch.compile is not usable here ({reason}); steps run uncompiled, which is "
            f"correct but slower for large models. Install a C++ compiler, or pass fuse=False to silence this.",
            stacklevel=2,
        )


def make_kernel(space: Constraint, word: str, step_ends: bool) -> Kernel:
    """Compile consecutive letters on one space into a function of the tensors alone."""

    def kernel(phase: Phase, force: Tensors, numbers: Sequence[Numbers], noises: Sequence[Tensors]) -> None:
        run(space, word, phase, force, numbers, noises, 0, step_ends)

    # The compiler counts recompilations per code object; kernels of different words are not each other's.
    own = types.FunctionType(kernel.__code__.replace(), kernel.__globals__, f"kernel_{word}", None, kernel.__closure__)
    return torch.compile(own, dynamic=True, fullgraph=True, options=_compiler_options())


def _compiler_options() -> dict[str, Any] | None:
    """Fused multiply-adds where the compiler can be asked for them: a step is bound by arithmetic, then memory."""
    from torch._inductor import config

    option = "enable_floating_point_contract_flag"
    return {f"cpp.{option}": "fast"} if hasattr(config.cpp, option) else None


def as_tensors(numbers: Sequence[Numbers], like: Tensor) -> list[Numbers]:
    """Coefficients as 0-dim tensors, so that a changed lr is not a new program."""
    return [
        # full() fills on the device; tensor() would copy from the host and wait.
        tuple(x if isinstance(x, Tensor) else torch.full((), x, dtype=like.dtype, device=like.device) for x in values)
        for values in numbers
    ]


def packs(count: int) -> list[slice]:
    return [slice(i, i + PACK) for i in range(0, count, PACK)]
