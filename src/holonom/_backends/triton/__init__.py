"""The backend of GPUs: a stage of all tensors of a bucket in one launch, by Triton.

It does what :func:`holonom._step.integrate.integrate` says. Kernels work on the parameters and the state themselves; a
step that is skipped writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from ..._step.buckets import Bucket
from ..._step.integrate import Eager, Normals, Scalar
from ..._step.letters import Ready
from ..._random.philox import as_seed
from ...constraints import Circle, Free
from ...constraints.base import inset
from .entries import LETTER, find_non_finite, step_entries
from .tables import Table

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
MAX_DRAWS = 2  # of one stage
MAX_LETTERS = 12


def fits(buckets: Sequence[Bucket]) -> bool:
    """Whether there are kernels for these buckets."""
    return all(_fits(bucket) for bucket in buckets)


def _fits(bucket: Bucket) -> bool:
    if "fits" not in bucket.kept:
        kind, radius = type(bucket.space), getattr(bucket.space, "radius", 1.0)
        states = [x for s in bucket.states for x in s.values() if isinstance(x, Tensor) and x.is_floating_point()]
        bucket.kept["fits"] = (
            kind in (Free, Circle)
            and not isinstance(radius, Tensor)
            and all(p.dtype in TYPES and p.is_contiguous() for p in bucket.params)
            and all(x.dtype == torch.float32 and x.is_contiguous() for x in states)
        )
    return bool(bucket.kept["fits"])


def table_of(bucket: Bucket, replicas: int) -> Table:
    key = ("table", replicas)
    if key not in bucket.kept:
        bucket.kept[key] = Table(bucket, replicas)
    table: Table = bucket.kept[key]
    return table


class Triton(Eager):
    """Runs stages by kernels; what has none is run by the reference."""

    def __init__(self, seed: int | Tensor) -> None:
        self.seed = seed
        self.replicas = len(seed) if isinstance(seed, Tensor) and seed.ndim else 1

    def begin(
        self,
        buckets: Sequence[Bucket],
        gradients: Sequence[Sequence[Tensor]] | None,
        sign: float,
        decay: Scalar,
        skip: Tensor | None,
    ) -> None:
        self.buckets, self.sign, self.decay, self.skip = buckets, sign, decay, skip
        self.has_force, self.starts = gradients is not None, True
        self.tables = [table_of(bucket, self.replicas) for bucket in buckets]
        self.partials: list[Tensor] = []
        self.kept: list[list[Tensor]] = []  # copies of gradients, until the step ends
        for bucket, table, found in zip(buckets, self.tables, gradients or (), strict=False):
            self.kept.append(readable(bucket, found))
            table.set_gradients(self.kept[-1])

    def run(self, ops: Sequence[Ready], noise: Any, polish: bool | None) -> None:
        self.partials = []
        for number, (bucket, table) in enumerate(zip(self.buckets, self.tables, strict=True)):
            numbers, draws = table.numbers(ops, self.decay)
            letters, normals = codes(ops)
            space = bucket.space
            circle = isinstance(space, Circle)
            clock = noise.clock.to(bucket.device)
            seeds = as_seed(self.seed, bucket.device)
            energy = polish is None and table.has_momentum
            partial = torch.empty(table.size if energy else 1, device=bucket.device)
            self.partials.append(partial)
            step_entries[(table.size,)](
                table.chunks, table.tensors, table.gradients, numbers, draws, seeds, clock,
                clock if self.skip is None else self.skip, partial, self.sign,
                float(space.radius) if circle else 1.0,
                1 - inset(space.margin, bucket.params[0].dtype) if circle else 1.0,
                torch.finfo(bucket.params[0].dtype).eps if bucket.narrow else 0.0,
                numbers.shape[1], int(self.replicas > 1),
                LETTERS=letters, NORMALS=normals, LENGTH=len(ops), CIRCLE=circle, MOMENTUM=table.has_momentum,
                FORCE=self.has_force, DECAY=isinstance(self.decay, Tensor) or bool(self.decay),
                SKIP=self.skip is not None, ENERGY=energy, FINISH=polish is not None, TAKE_UP=self.starts,
                WEIGHT=TYPES[bucket.params[0].dtype],
                GRADIENT=TYPES[self.kept[number][0].dtype] if self.kept else tl.float32,
                num_warps=4,
            )  # fmt: skip
        self.starts = False

    def kinetic_energy(self, replica_dims: int) -> Tensor:
        sums = [partial.view(self.replicas, -1).sum(1) for partial in self.partials]
        total = torch.stack(sums).sum(0)
        return total if replica_dims else total[0]

    def positions(self) -> list[Tensor]:
        return [p.detach() for bucket in self.buckets for p in bucket.params]

    def end(self, skip: Tensor | None) -> None:
        for bucket, table in zip(self.buckets, self.tables, strict=True):
            increment_version([*bucket.params, *table.states])
        self.kept = []


def readable(bucket: Bucket, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Gradients as kernels read them: of one dtype, contiguous, not lazily negated."""
    dtype = gradients[0].dtype
    return [
        g if g.dtype == dtype and g.is_contiguous() and not g.is_neg() else g.resolve_neg().to(dtype).contiguous()
        for g in gradients
    ]


def codes(ops: Sequence[Ready]) -> tuple[int, int]:
    """The letters of a stage, and which draw each takes, four bits each."""
    letters = normals = draws = 0
    for i, op in enumerate(ops):
        letters |= LETTER[op.letter] << 4 * i
        if op.draw is not None:
            draws += 1
            normals |= draws << 4 * i
    return letters, normals
