"""When and how a step becomes one compiled pass over memory.

A step is a handful of element- or row-wise operations, each of which streams all weights through
memory; compiled, it is a single pass. Compiling takes seconds, so it happens only once a run has
moved enough weights for that to have paid. The rule reads sizes and step counts alone, never a
clock: a resumed run switches at the same step and stays bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import counter
from .compiling import attempted, available, own, say_uncompiled
from .constraints.base import Constraint, Phase
from .flows import Numbers, run_unless
from .lists import Tensors
from .straight import Calls, Straight

WORTH = 5_000_000_000  # weights × steps after which the time saved exceeds a compiler's run
SMALLEST = 16_384  # elements below which a tensor gains nothing
PACK = 8  # tensors handed to one compiled call: more would compile longer, fewer would call more often
MOST = 8  # programs for fixed sizes, of one space; beyond them all sizes share one

Key = tuple[Any, ...]
Kernel = Callable[[Phase, Tensors, Sequence[Numbers], Sequence[Tensors], Tensor | None, Calls | None], None]


def worth_it(fuse: bool | None, elements: int, step: int) -> bool:
    """``fuse``: True always, False never, None once it pays."""
    return elements * step >= WORTH if fuse is None else fuse


class Pack(NamedTuple):
    """Tensors of one compiled call: which ones, their phase, and that as vectors where shapes do not matter."""

    where: list[int]
    phase: Phase
    flat: Phase | None
    sizes: tuple[torch.Size, ...]
    calls: Calls  # compiled calls with this very phase
    kernels: dict[Key, tuple[Kernel | None, Key]]  # found for it, and by which key of all


Packed = tuple[list[Pack], list[int]]


class Fuser:
    """Runs letters of one space compiled, tensors in packs; what does not compile runs as it is."""

    def __init__(self, space: Constraint) -> None:
        self.space = space
        self._kernels: dict[Key, Kernel | None] = {}
        self._numbers: tuple[Sequence[Numbers], list[Numbers]] | None = None
        self._draw: Callable[..., Tensors] | None = None
        self._last: tuple[Phase, Packed] | None = None

    def __call__(
        self,
        skip: Tensor | None,
        word: str,
        phase: Phase,
        force: Tensors,
        numbers: Sequence[Numbers],
        noises: Sequence[Tensors],
        step: int,
        last: bool,
        lasting: bool,
    ) -> None:
        """``lasting``: whether the phase will be given again, so that what is prepared for it is worth keeping."""
        packs, rest = self._packed(phase, lasting)
        if rest:
            run_unless(skip, self.space, word, *cut(phase, force, numbers, noises, rest), step, last)
        values, per_replica = self._as_tensors(numbers, phase.q[0])
        count = len(phase.q)
        for pack in packs:
            part = pack.flat if pack.flat and not per_replica else pack.phase
            pulls = _picked(force, pack.where, count)
            draws = [_picked(xs, pack.where, count) for xs in noises]
            kernel, key = self._kernel(word, last, pack, draws, skip is not None, len(packs))
            if kernel is not None:
                try:
                    kernel(part, pulls, values, draws, skip, pack.calls if lasting else None)
                    continue
                except Exception as error:  # whatever a compiler can fail with; it fails before anything is written
                    self._kernels[key] = None
                    pack.kernels.clear()
                    say_uncompiled(error)
            run_unless(skip, self.space, word, pack.phase, pulls, numbers, draws, step, last)

    def _packed(self, phase: Phase, lasting: bool) -> Packed:
        """What depends on the phase alone: its packs, and which tensors are in none."""
        if self._last is not None and self._last[0] is phase:
            return self._last[1]
        plan, rest = _plan(phase.q)
        if _overlap(phase):  # a program for tensors in one memory may come back from the compiler's cache for others
            plan, rest = [], list(range(len(phase.q)))
        packs = []
        for where in plan:
            part = cut(phase, [], [], [], where)[0]
            flat = None
            if self.space.elementwise and all(x.is_contiguous() for xs in part for x in xs):
                flat = Phase(*([x.view(-1) for x in xs] for xs in part))
            packs.append(Pack(where, part, flat, tuple(x.shape for x in part.q), {}, {}))
        self._last = (phase, (packs, rest)) if lasting else None
        return packs, rest

    def draw(self, normals: counter.Normals, seeds: Tensor, step: Tensor, draw: int, compiled: bool) -> Tensors:
        """Normals for every replica's own stream; ``draw`` is part of the program, so it compiles as a constant."""
        if compiled and available() and not torch.compiler.is_compiling():
            self._draw = self._draw or counter.compiled(counter.Normals.__call__)
            return list(self._draw(normals, seeds, step, draw))
        return normals(seeds, step, draw)

    def _kernel(
        self, word: str, last: bool, pack: Pack, draws: list[Tensors], skips: bool, packs: int
    ) -> tuple[Kernel | None, Key]:
        """Few packs each get a kernel for their very sizes; many share one, whose sizes are dynamic."""
        wanted: Key = (word, last, skips, self.space.constants, *map(len, draws))
        if wanted not in pack.kernels:
            sized: Key = (*wanted, pack.sizes)
            fixed = sized in self._kernels or (packs <= 2 and len(self._kernels) < MOST)
            key = sized if fixed else (*wanted, len(pack.where))
            if key not in self._kernels:
                try:
                    self._kernels[key] = make_kernel(self.space, word, last, fixed, pack.phase.q[0].is_cuda)
                except Exception as error:
                    self._kernels[key] = None
                    say_uncompiled(error)
            pack.kernels[wanted] = self._kernels[key], key
        return pack.kernels[wanted]

    def _as_tensors(self, numbers: Sequence[Numbers], like: Tensor) -> tuple[list[Numbers], bool]:
        """Coefficients as 0-dim tensors, so that a changed lr is not a new program; and whether replicas have own ones.

        Numbers that are the same ones as last time, and floats, keep their tensors.
        """
        if self._numbers is not None and self._numbers[0] is numbers:
            return self._numbers[1], False
        # full() fills on the device; tensor() would copy from the host and wait.
        tensors: list[Numbers] = [
            tuple(
                x.to(like.dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=like.dtype, device=like.device)
                for x in values
            )
            for values in numbers
        ]
        given = [x for values in numbers for x in values if isinstance(x, Tensor)]
        self._numbers = None if given else (numbers, tensors)
        return tensors, any(x.ndim for x in given)


def make_kernel(space: Constraint, word: str, step_ends: bool, fixed: bool, on_gpu: bool) -> Kernel:
    """Compile consecutive letters on one space into a function of the tensors alone, of fixed sizes or of any."""
    # Row by row, reading again costs less than a copy of the momenta. Not on a GPU: there the compiler writes sines and
    # short sums out wherever they are used, one letter's within the next one's, and would not come to an end.
    rereading = not (space.elementwise or on_gpu)

    def kernel(
        phase: Phase, force: Tensors, numbers: Sequence[Numbers], noises: Sequence[Tensors], skip: Tensor | None
    ) -> None:
        run_unless(skip, space, word, phase, force, numbers, noises, 0, step_ends)

    def compiled(dynamic: bool | None) -> Kernel:
        return Straight(own(kernel, f"kernel_{word}"), dynamic, compiler_options(rereading))

    # Fixed sizes make faster programs, but some row-wise reductions of fixed size meet a bug of the compiler's C++
    # back end (torch 2.13, outer-loop fusion).
    sizes = False if fixed else None
    return compiled(sizes) if space.elementwise else attempted(compiled(sizes), compiled(True), quietly=True)


def compiler_options(rereading: bool = False) -> dict[str, Any]:
    """How to compile, in the terms of the compilers that know them.

    ``rereading``: passes read what they need again rather than keep a copy of it between them.
    """
    from torch._inductor import config

    options: dict[str, Any] = {"size_asserts": False}  # asked before every call, of tensors that were asked already
    # Fused multiply-adds: a step is bound by arithmetic, then memory.
    if hasattr(config.cpp, "enable_floating_point_contract_flag"):
        options["cpp.enable_floating_point_contract_flag"] = "fast"
    if rereading:
        options.update(dict.fromkeys(("realize_reads_threshold", "realize_opcount_threshold"), 1000))
    return options


def _plan(tensors: Tensors) -> tuple[list[list[int]], list[int]]:
    """Which tensors go into which compiled call, and which are too small for one. A few small ones ride along."""
    everyone = list(range(len(tensors)))
    if len(tensors) <= PACK:
        return [everyone], []
    large = [i for i in everyone if tensors[i].numel() >= SMALLEST]
    small = [i for i in everyone if tensors[i].numel() < SMALLEST]
    return [large[i : i + PACK] for i in range(0, len(large), PACK)], small


def _overlap(phase: Phase) -> bool:
    """Whether two tensors share memory."""
    spans = []
    for x in (x for xs in phase for x in xs if x.numel()):
        reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
        spans.append((x.data_ptr(), x.data_ptr() + reach * x.element_size()))
    spans.sort()
    return any(end > start for (_, end), (start, _) in pairwise(spans) if start)


def cut(
    phase: Phase, force: Tensors, numbers: Sequence[Numbers], noises: Sequence[Tensors], where: list[int]
) -> tuple[Phase, Tensors, Sequence[Numbers], list[Tensors]]:
    """Some of the tensors of every list."""
    count = len(phase.q)
    part = Phase(*(_picked(xs, where, count) for xs in phase))
    return part, _picked(force, where, count), numbers, [_picked(xs, where, count) for xs in noises]


def _picked(xs: Tensors, where: list[int], count: int) -> Tensors:
    """Some of ``count`` tensors. A noise list holds the parameters' draws, then the slacks'."""
    if len(where) == count:
        return xs
    return [xs[start + i] for start in range(0, len(xs), count) for i in where]
