"""The compiled backend: the reference integrator as one pass over memory, by torch.compile.

Stages of element- and row-wise spaces are traced with coefficients and radii as inputs, so that a changed lr is not a
new program. Kernels are cached by everything a program depends on: letters, space, sizes, strides and dtypes. That
makes Dynamo's guards superfluous, and they are dropped where torch allows it.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._random import philox
from .._step.buckets import Bucket
from .._step.integrate import Eager, Normals, Phase, Scalar, integrate
from .._step.letters import Ready
from .._torch import compile_errors, guards_where, known_options
from ..constraints.base import Constraint

MIN_COMPILED = 16_384  # elements below which a tensor gains nothing, if there are many
MAX_PACK = 8  # tensors of one compiled call: more would compile longer, fewer would call more often
MAX_FIXED = 8  # kernels for fixed sizes of one space; beyond them all sizes share one

Kernel = Callable[..., None]
Key = tuple[Any, ...]
F = TypeVar("F", bound=Callable[..., object])

_kernels: dict[Key, Callable[..., Any] | None] = {}  # None: did not compile
_fixed: dict[Key, int] = {}  # how many kernels of fixed size there are


class Inductor(Eager):
    """Runs stages compiled, tensors in packs; what does not compile runs eagerly."""

    def stage(
        self,
        bucket: Bucket,
        ops: Sequence[Ready],
        phases: Sequence[Phase],
        forces: Sequence[Tensor | None],
        drawn: Mapping[int, Sequence[Normals]],
        polish: bool | None,
    ) -> None:
        packs, rest = plan(phases, forces, [p.numel() for p in bucket.given])
        precision = bucket.precision if self.adopts else None
        polish = None if polish is None else True  # at every step: not polishing would be a second program to compile
        for pack in packs:
            part, pack_forces = [phases[i] for i in pack], [forces[i] for i in pack]
            noise = {draw: [normals[i] for i in pack] for draw, normals in drawn.items()}
            if not run_compiled(bucket.space, ops, part, pack_forces, noise, polish, precision, len(packs) <= 2):
                super().stage(bucket, ops, part, pack_forces, noise, polish)
        if rest:
            noise = {draw: [normals[i] for i in rest] for draw, normals in drawn.items()}
            super().stage(bucket, ops, [phases[i] for i in rest], [forces[i] for i in rest], noise, polish)


def plan(
    phases: Sequence[Phase], forces: Sequence[Tensor | None], sizes: Sequence[int]
) -> tuple[list[list[int]], list[int]]:
    """Which tensors go into which compiled call, and which are run eagerly, by their sizes on all ranks together."""
    indices = list(range(len(phases)))
    if overlap(phases, forces):  # a kernel traced with aliased inputs is wrong for others
        return [], indices
    if len(phases) <= MAX_PACK:
        return [indices], []
    large = [i for i in indices if sizes[i] >= MIN_COMPILED]
    small = [i for i in indices if sizes[i] < MIN_COMPILED]
    return [large[i : i + MAX_PACK] for i in range(0, len(large), MAX_PACK)], small


def overlap(phases: Sequence[Phase], forces: Sequence[Tensor | None]) -> bool:
    """Whether two tensors share memory."""
    spans = []
    tensors = [x for phase in phases for x in phase[:4]] + [*forces]
    for x in (x for x in tensors if isinstance(x, Tensor) and x.numel()):
        reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
        spans.append((x.data_ptr(), x.data_ptr() + reach * x.element_size()))
    spans.sort()
    return any(end > start for (_, end), (start, _) in pairwise(spans) if start)


def run_compiled(
    space: Constraint,
    ops: Sequence[Ready],
    phases: Sequence[Phase],
    forces: Sequence[Tensor | None],
    drawn: Mapping[int, Sequence[Normals]],
    polish: bool | None,
    precision: torch.dtype | None,
    few: bool,
) -> bool:
    """Run a stage by its kernel; False if there is none because the compiler failed at it, before anything ran.

    ``few``: there are few packs, so that each may have a kernel for its sizes.
    """
    like = phases[0].q
    numbers = [[_as_tensor(x, like) for x in op.numbers] for op in ops]
    work = [x._replace(radius=None if x.radius is None else _as_tensor(x.radius, like)) for x in phases]
    letters = tuple((op.letter, op.draw is not None) for op in ops)
    kind: Key = (space.kernel_key(), letters, polish, precision, like.device, len(phases))
    noises = [drawn[op.draw] if op.draw is not None else None for op in ops]
    tensors = [x for phase in work for x in phase] + [*forces] + [x for values in numbers for x in values]
    tensors += [x for normals in noises if normals is not None for pair in normals for x in pair]
    layout = [_layout(x) for x in tensors]
    key = (*kind, *layout)
    if key not in _kernels:
        fixed = few and _fixed.get(kind, 0) < MAX_FIXED
        _fixed[kind] = _fixed.get(kind, 0) + fixed
        if not fixed:
            key = (*kind, "dynamic", *(len(x[0]) if x else None for x in layout))
        if key not in _kernels:
            _kernels[key] = make_kernel(space, [op[0::2] for op in ops], polish, dynamic=not fixed, precision=precision)
    kernel = _kernels[key]
    if kernel is None:
        return False
    try:
        kernel(work, forces, numbers, noises)
    except compile_errors() as error:
        _kernels[key] = None
        warn_uncompiled(error)
        return False
    return True


def _as_tensor(x: Scalar, like: Tensor) -> Tensor:
    # full() fills on the device; tensor() would copy from the host and wait.
    return x.to(like) if isinstance(x, Tensor) else torch.full((), x, dtype=like.dtype, device=like.device)


def _layout(x: Any) -> tuple[Any, ...] | None:
    return (x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else None


def make_kernel(
    space: Constraint,
    letters: Sequence[tuple[str, int | None]],
    polish: bool | None,
    dynamic: bool,
    precision: torch.dtype | None = None,
) -> Kernel:
    """A compiled function of phases, forces, coefficients and normals; letters and space are part of the program."""

    def kernel(
        phases: list[Phase],
        forces: list[Tensor | None],
        numbers: list[list[Tensor]],
        noises: list[Sequence[Normals] | None],
    ) -> None:
        ops = [
            Ready(letter, tuple(n), place if draw is not None else None)
            for place, ((letter, draw), n) in enumerate(zip(letters, numbers))
        ]
        for i, phase in enumerate(phases):
            normals = lambda place, i=i: noises[place][i]  # type: ignore[index,misc] # noqa: E731
            integrate(ops, space, phase, forces[i], normals, polish, precision)

    guards = {} if dynamic else guards_where(lambda source: False)  # the key has all that they would check
    return torch.compile(
        with_own_code(kernel), fullgraph=True, dynamic=dynamic, options=known_options(OPTIONS | guards)
    )


# Dynamo has checked these sizes. Fused multiply-adds: a step is bound by arithmetic, then by memory.
OPTIONS: dict[str, Any] = {"size_asserts": False, "cpp.enable_floating_point_contract_flag": "fast"}
# Inductor repeats an expression wherever it is used, up to this many operations. Philox uses every word several times
# a round: thousands of operations would come of two hundred.
DRAW_OPTIONS: dict[str, Any] = {"realize_opcount_threshold": 8}


def with_own_code(function: F) -> F:
    """A copy with a code object of its own: Dynamo keeps its programs, and limits their number, per code object."""
    assert isinstance(function, types.FunctionType)
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy  # type: ignore[return-value]


def compiled_normals(tiles: Tensor, streams: Tensor, seeds: Tensor, step: Tensor, draw: int) -> Tensor:
    """:func:`holonom._random.philox.normals`, by one program for all sizes."""
    key: Key = ("normals", tiles.device, seeds.ndim)
    if key not in _kernels:
        options = known_options(DRAW_OPTIONS)
        _kernels[key] = torch.compile(with_own_code(philox.normals), fullgraph=True, dynamic=True, options=options)
    number = torch.full((), draw, device=tiles.device)
    kernel = _kernels[key]
    if kernel is not None:
        try:
            drawn: Tensor = kernel(tiles, streams, seeds, step, number)
            return drawn
        except compile_errors() as error:
            _kernels[key] = None
            warn_uncompiled(error)
    return philox.normals(tiles, streams, seeds, step, number)


def warn_uncompiled(error: Exception) -> None:
    error = getattr(error, "inner_exception", error)  # of BackendCompilerFailed, which says "backend raised" first
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    warnings.warn(
        f"holonom: torch.compile did not work here ({reason}); such steps run uncompiled, which is "
        f"correct but slower for large models. Install a C++ compiler, or pass fuse=False to silence this.",
        stacklevel=2,
    )
