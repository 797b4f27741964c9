"""The backend of GPUs: a stage of all tensors of a bucket in one launch, by Triton.

It does what :func:`holonom._step.integrate.integrate` says. Kernels work on the parameters and the state themselves; a
step that is skipped writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from ..._random.philox import as_seed
from ..._step.buckets import Bucket
from ..._step.integrate import Eager, Scalar
from ..._step.letters import Ready
from ...constraints import Circle, Free, Sphere
from ...constraints.base import inset
from .entries import LETTER, find_non_finite, step_entries
from .rows import ROWS, step_rows
from .tables import Table, lanes_for, upload

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}  # tables.READABLE
WARPS = {64: 1, 256: 4, 1024: 8, 4096: 16}  # by the lanes of a kernel for rows
MAX_DRAWS = 2  # of one stage


def fits(buckets: Sequence[Bucket], word: str, replicas: int) -> bool:
    """Whether there are kernels for these buckets and this word."""
    if sum(word.count(letter) for letter in "ODF") > MAX_DRAWS:
        return False
    if "E" in word and any(bucket.narrow for bucket in buckets):  # positions would be rounded between two stages
        return False
    return all(_fits(bucket, replicas) for bucket in buckets)


def _fits(bucket: Bucket, replicas: int) -> bool:
    key = ("fits", replicas)
    if key not in bucket.kept:
        kind, radius = type(bucket.space), getattr(bucket.space, "radius", 1.0)
        positions = [bucket.space.view(p.detach()) for p in bucket.params]
        states = [x for s in bucket.states for x in s.values() if isinstance(x, Tensor) and x.is_floating_point()]
        bucket.kept[key] = (
            kind in (Free, Circle, Sphere)
            and (kind is Sphere or not isinstance(radius, Tensor))
            and all(p.dtype in TYPES and p.is_contiguous() for p in bucket.params)
            and all(bucket.space.is_view(p) for p in bucket.params)  # a copy's rows are not those of the memory
            and all(x.is_contiguous() for x in positions)
            and all(x.dtype == torch.float32 and x.is_contiguous() for x in states)
            and (kind is not Sphere or all(lanes_for(x.shape[-1]) is not None for x in positions))
            and all(p.shape[:1] == (replicas,) for p in bucket.params if replicas > 1)
        )
    return bool(bucket.kept[key])


def table_of(bucket: Bucket, replicas: int) -> Table:
    key = ("table", replicas)
    if key not in bucket.kept:
        bucket.kept[key] = Table(bucket, replicas)
    table: Table = bucket.kept[key]
    return table


def any_non_finite(pairs: Sequence[tuple[Bucket, Sequence[Tensor]]]) -> Tensor:
    """Whether a gradient holds NaN or infinity, on the device."""
    flag = torch.zeros((), dtype=torch.bool, device=pairs[0][0].device)
    for bucket, gradients in pairs:
        table = table_of(bucket, 1)
        table.read(gradients)
        with torch.cuda.device_of(flag):  # type: ignore[no-untyped-call]
            find_non_finite[(table.entries.size,)](
                table.entries.table, table.tensors, table.gradients, flag, GRADIENT=TYPES[table.gradient_dtype],
                num_warps=4,
            )  # fmt: skip
    return flag


class Triton(Eager):
    """Runs stages by kernels."""

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
        adopt: bool = True,
    ) -> None:
        self.buckets, self.sign, self.decay, self.skip = buckets, sign, decay, skip
        self.adopts = adopt
        self.tables = [table_of(bucket, self.replicas) for bucket in buckets]
        self.has_force = gradients is not None
        for table, found in zip(self.tables, gradients or (), strict=False):
            table.read(found)

    def run(self, ops: Sequence[Ready], noise: Any, polish: bool | None) -> None:
        self.energies: list[Tensor] = []
        letters, normals = codes(ops)
        for bucket, table in zip(self.buckets, self.tables, strict=True):
            with torch.cuda.device_of(table.tensors):  # type: ignore[no-untyped-call] # launched where parameters are
                self._launch(bucket, table, ops, letters, normals, noise, polish)
        self.adopts = False

    def _launch(
        self, bucket: Bucket, table: Table, ops: Sequence[Ready], letters: int, normals: int, noise: Any, polish: Any
    ) -> None:
        dtype = bucket.params[0].dtype
        numbers, draws = table.numbers(ops, self.decay)
        clock = noise.clock if noise.clock.device == bucket.device else noise.clock.to(bucket.device)
        energy = polish is None and table.has_momentum
        places = (table.tensors, table.gradients, numbers, draws, self._seeds(bucket), clock)
        options: dict[str, Any] = {
            "LETTERS": letters,
            "NORMALS": normals,
            "LENGTH": len(ops),
            "MOMENTUM": table.has_momentum,
            "FORCE": self.has_force,
            "DECAY": isinstance(self.decay, Tensor) or bool(self.decay),
            "SKIP": self.skip is not None,
            "ENERGY": energy,
            "TAKE_UP": self.adopts,
            "WEIGHT": TYPES[dtype],
            "GRADIENT": TYPES[table.gradient_dtype],
        }
        skip = clock if self.skip is None else self.skip
        strides = (numbers.shape[1], int(self.replicas > 1))
        rounding = torch.finfo(dtype).eps if bucket.narrow else 0.0
        tiny = torch.finfo(dtype).tiny
        space = bucket.space
        if isinstance(space, Sphere):
            radii = self._radii(bucket)
            limit = 1 - inset(space.margin, dtype)
            for chunks in table.rows:
                partial = self._partial(chunks.size if energy else 1, bucket.device)
                step_rows[(chunks.size,)](
                    chunks.table, *places, skip, partial, radii, self.sign, rounding, limit,
                    int(radii.numel() > 1), *strides, SLACK=space.has_slack, LANE_COUNT=chunks.lanes,
                    ROW_COUNT=ROWS, num_warps=WARPS[chunks.lanes], **options,
                )  # fmt: skip
        else:
            circle = isinstance(space, Circle)
            radius = float(space.radius) if circle else 1.0  # type: ignore[attr-defined]
            limit = 1 - inset(space.margin, dtype) if circle else 1.0  # type: ignore[attr-defined]
            partial = self._partial(table.entries.size if energy else 1, bucket.device)
            step_entries[(table.entries.size,)](
                table.entries.table, *places, skip, partial, self.sign, radius, limit, rounding, tiny, *strides,
                CIRCLE=circle, FINISH=polish is not None, num_warps=4, **options,
            )  # fmt: skip

    def _partial(self, count: int, device: torch.device) -> Tensor:
        partial = torch.empty(count, device=device)
        self.energies.append(partial)
        return partial

    def _seeds(self, bucket: Bucket) -> Tensor:
        if isinstance(self.seed, Tensor):
            return self.seed.to(bucket.device)
        key = ("seed", self.seed)
        if key not in bucket.kept:
            bucket.kept[key] = as_seed(self.seed, bucket.device)
        seeds: Tensor = bucket.kept[key]
        return seeds

    def _radii(self, bucket: Bucket) -> Tensor:
        if "radii" not in bucket.kept:
            radius = bucket.space.radius  # type: ignore[attr-defined]
            found = radius.to(bucket.device, torch.float32).contiguous() if isinstance(radius, Tensor) else None
            bucket.kept["radii"] = upload([radius], torch.float32, bucket.device) if found is None else found
        radii: Tensor = bucket.kept["radii"]
        return radii

    def kinetic_energy(self, replica_dims: int) -> Tensor:
        total = torch.stack([partial.view(self.replicas, -1).sum(1) for partial in self.energies]).sum(0)
        return total if replica_dims else total[0]

    def positions(self) -> list[Tensor]:
        return [p.detach() for bucket in self.buckets for p in bucket.params]

    def end(self, skip: Tensor | None) -> None:
        for bucket, table in zip(self.buckets, self.tables, strict=True):
            increment_version(bucket.params)
            table.forget()


def codes(ops: Sequence[Ready]) -> tuple[int, int]:
    """The letters of a stage, and which draw each takes, four bits each."""
    letters = normals = draws = 0
    for i, op in enumerate(ops):
        letters |= LETTER[op.letter] << 4 * i
        if op.draw is not None:
            draws += 1
            normals |= draws << 4 * i
    return letters, normals
