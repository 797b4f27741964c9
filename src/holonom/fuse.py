"""When and how a step becomes one compiled pass over memory.

A step is a handful of element- or row-wise operations, each of which streams all weights through
memory; compiled, it is a single pass. Compiling takes seconds, so it happens only once a run has
moved enough weights for that to have paid. The rule reads sizes and step counts alone, never a
clock: a resumed run switches at the same step and stays bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import counter
from .compiling import attempted, available, own, say_uncompiled
from .constraints.base import Constraint, Phase
from .flows import Numbers, run
from .lists import Tensors

WORTH = 5_000_000_000  # weights × steps after which the time saved exceeds a compiler's run
SMALLEST = 16_384  # elements below which a tensor gains nothing
PACK = 8  # tensors handed to one compiled call: more would compile longer, fewer would call more often

Kernel = Callable[[Phase, Tensors, Sequence[Numbers], Sequence[Tensors]], None]


def worth_it(fuse: bool | None, elements: int, step: int) -> bool:
    """``fuse``: True always, False never, None once it pays."""
    return elements * step >= WORTH if fuse is None else fuse


class Fuser:
    """Runs letters of one space compiled, tensors in packs; what does not compile runs as it is."""

    def __init__(self, space: Constraint) -> None:
        self.space = space
        self._kernels: dict[tuple[Any, ...], Kernel | None] = {}
        self._numbers: tuple[Any, list[Numbers]] | None = None
        self._draw: Callable[..., Tensors] | None = None

    def __call__(
        self,
        word: str,
        phase: Phase,
        force: Tensors,
        numbers: Sequence[Numbers],
        noises: Sequence[Tensors],
        step: int,
        last: bool,
    ) -> None:
        packs, rest = _plan(phase.q)
        if rest:
            run(self.space, word, *cut(phase, force, numbers, noises, rest), step, last)
        for number, pack in enumerate(packs):
            part, pulls, _, draws = cut(phase, force, numbers, noises, pack)
            per_replica = any(isinstance(x, Tensor) and x.ndim for values in numbers for x in values)
            contiguous = all(x.is_contiguous() for xs in (*part, pulls, *draws) for x in xs)
            if self.space.elementwise and contiguous and not per_replica:
                part = Phase(*([x.view(-1) for x in xs] for xs in part))
                pulls = [x.view(-1) for x in pulls]
                draws = [[x.view(-1) for x in xs] for xs in draws]
            # Few packs each get a kernel for their very sizes; many share one, whose sizes become dynamic.
            key = (word, last, len(pack), *map(len, draws), number if len(packs) <= 2 else None)
            kernel = self._kernels[key] if key in self._kernels else self._compile(key, word, last)
            if kernel is not None:
                try:
                    kernel(part, pulls, self._as_tensors(numbers, pulls[0]), draws)
                    continue
                except Exception as error:  # whatever a compiler can fail with; it fails before anything is written
                    self._kernels[key] = None
                    say_uncompiled(error)
            run(self.space, word, part, pulls, numbers, draws, step, last)

    def draw(self, normals: counter.Normals, seeds: Tensor, step: Tensor, draw: int, compiled: bool) -> Tensors:
        """Normals for every replica's own stream; ``draw`` is part of the program, so it compiles as a constant."""
        if compiled and available() and not torch.compiler.is_compiling():
            self._draw = self._draw or counter.compiled(counter.Normals.__call__)
            return list(self._draw(normals, seeds, step, draw))
        return normals(seeds, step, draw)

    def _compile(self, key: tuple[Any, ...], word: str, last: bool) -> Kernel | None:
        try:
            self._kernels[key] = make_kernel(self.space, word, last)
        except Exception as error:
            self._kernels[key] = None
            say_uncompiled(error)
        return self._kernels[key]

    def _as_tensors(self, numbers: Sequence[Numbers], like: Tensor) -> list[Numbers]:
        """Coefficients as 0-dim tensors, so that a changed lr is not a new program; kept while they stay the same."""
        key = None if any(isinstance(x, Tensor) for values in numbers for x in values) else (numbers, like.device)
        if key is not None and self._numbers is not None and self._numbers[0] == key:
            return self._numbers[1]
        # full() fills on the device; tensor() would copy from the host and wait.
        tensors: list[Numbers] = [
            tuple(
                x if isinstance(x, Tensor) else torch.full((), x, dtype=like.dtype, device=like.device) for x in values
            )
            for values in numbers
        ]
        if key is not None:
            self._numbers = (key, tensors)
        return tensors


def make_kernel(space: Constraint, word: str, step_ends: bool) -> Kernel:
    """Compile consecutive letters on one space into a function of the tensors alone."""

    def kernel(phase: Phase, force: Tensors, numbers: Sequence[Numbers], noises: Sequence[Tensors]) -> None:
        run(space, word, phase, force, numbers, noises, 0, step_ends)

    def compiled(dynamic: bool | None) -> Kernel:
        return torch.compile(own(kernel, f"kernel_{word}"), fullgraph=True, dynamic=dynamic, options=compiler_options())

    # Fixed sizes make faster programs, but some row-wise reductions of fixed size meet a bug of the compiler's C++
    # back end (torch 2.13, outer-loop fusion).
    return compiled(None) if space.elementwise else attempted(compiled(None), compiled(True), quietly=True)


def compiler_options() -> dict[str, Any] | None:
    """Fused multiply-adds where the compiler can be asked for them: a step is bound by arithmetic, then memory."""
    from torch._inductor import config

    option = "enable_floating_point_contract_flag"
    return {f"cpp.{option}": "fast"} if hasattr(config.cpp, option) else None


def _plan(tensors: Tensors) -> tuple[list[list[int]], list[int]]:
    """Which tensors go into which compiled call, and which are too small for one. A few small ones ride along."""
    everyone = list(range(len(tensors)))
    if len(tensors) <= PACK:
        return [everyone], []
    large = [i for i in everyone if tensors[i].numel() >= SMALLEST]
    small = [i for i in everyone if tensors[i].numel() < SMALLEST]
    return [large[i : i + PACK] for i in range(0, len(large), PACK)], small


def cut(
    phase: Phase, force: Tensors, numbers: Sequence[Numbers], noises: Sequence[Tensors], where: list[int]
) -> tuple[Phase, Tensors, Sequence[Numbers], list[Tensors]]:
    """Some of the tensors of every list. A noise list holds the parameters' draws, then the slacks'."""
    count = len(phase.q)
    if len(where) == count:
        return phase, force, numbers, list(noises)

    def pick(xs: Tensors) -> Tensors:
        return [xs[start + i] for start in range(0, len(xs), count) for i in where]

    return Phase(*map(pick, phase)), pick(force), numbers, [pick(xs) for xs in noises]
