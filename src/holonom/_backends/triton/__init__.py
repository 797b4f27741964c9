"""The backend of GPUs: a stage of all tensors of a bucket in one launch, by Triton.

It does what :func:`holonom._step.integrate.integrate` says. Kernels work on the parameters and the state themselves; a
step that is skipped writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
import triton.language as tl
from torch import Tensor

from ..._step.buckets import MOVED, Bucket, State
from ..._step.integrate import Eager, Scalar
from ..._step.letters import Ready
from ...constraints import Circle, Free, Sphere, View
from ...constraints.base import Constraint, inset
from ...scheme import compile_word
from .blocks import add_terms, run_letters, sum_products
from .entries import LETTER, find_non_finite, step_entries
from .launches import Launches, count_writes
from .rows import ROWS, step_rows
from .tables import Table, channels_of, has_many_radii, is_capturing, lanes_for, table_of

if TYPE_CHECKING:
    from ..._step.run import Gradients

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}  # tables.READABLE
WARPS = {32: 1, 64: 1, 256: 2, 1024: 4, 4096: 16}  # by the lanes of a kernel for rows
MAX_DRAWS = 2  # of one launch


def fits(buckets: Sequence[Bucket], word: str, replicas: int) -> bool:
    """Whether there are kernels for these buckets and this word."""
    stages = "".join([op.letter for op in compile_word(word).program]).split("E")
    launches = sum(max(1, -(-sum(map(stage.count, "ODF")) // MAX_DRAWS)) for stage in stages)
    if launches > 1 and any(bucket.narrow and not isinstance(bucket.space, Circle) for bucket in buckets):
        return False  # positions would be rounded between two launches; on circles an angle stands for them
    return all(_fits(bucket, replicas) for bucket in buckets)


def _fits(bucket: Bucket, replicas: int) -> bool:
    key = ("fits", replicas)
    if key not in bucket.kept:
        states = [x for s in bucket.states for x in s.values() if isinstance(x, Tensor) and x.is_floating_point()]
        bucket.kept[key] = (
            type(bucket.space) in (Free, Circle, Sphere)
            and all(p.dtype in TYPES and p.data_ptr() for p in bucket.params)  # 0: of a subclass, memory is elsewhere
            and all(x.dtype == torch.float32 for x in states)
            and all(map(partial(_is_readable, bucket.space, replicas), bucket.params, bucket.states))
            and all(p.shape[:1] == (replicas,) for p in bucket.params if replicas > 1)
            and all(not start or channels_of(p) == 1 for p, start in zip(bucket.params, bucket.starts, strict=True))
        )
    return bool(bucket.kept[key])


def _is_readable(space: Constraint, replicas: int, p: Tensor, state: State) -> bool:
    """Whether kernels know the order that a parameter and its state have in memory."""
    channels, moved = channels_of(p), [state[name] for name in MOVED if name in state]
    if channels is None or (channels > 1 and replicas > 1):
        return False
    if not isinstance(space, Sphere):
        angles = [state[slot] for slot in space.slots if slot in state and state[slot].shape == p.shape]
        return all(x.stride() == p.stride() for x in (*moved, *angles))
    rows = space.view(p.detach())
    if channels > 1:
        own_rows = p.ndim > 2 and space.per == "row" and space.reading == View()
    else:
        own_rows = space.is_view(p) and rows.is_contiguous()
    slack = [state[slot] for slot in space.slots if slot in state]
    contiguous = all(x.is_contiguous() for x in (*moved, *slack))
    return own_rows and contiguous and (channels == 1 or lanes_for(rows.shape[-1]) is not None)


def any_non_finite(pairs: Sequence[tuple[Bucket, Gradients]]) -> Tensor:
    """Whether a gradient holds NaN or infinity, on the device."""
    flag = table_of(pairs[0][0], 1).flag.zero_()
    for bucket, gradients in pairs:
        table = table_of(bucket, 1)
        table.read(gradients)
        with torch.cuda.device_of(flag):  # type: ignore[no-untyped-call]
            find_non_finite[(table.entries.size,)](
                table.entries.table, table.tensors, table.gradients, flag, TYPES[table.gradient_dtype], num_warps=2
            )
    return flag


class Triton(Eager):
    """Runs stages by kernels."""

    def __init__(self, seed: int | Tensor) -> None:
        self.seed = seed
        self.replicas = len(seed) if isinstance(seed, Tensor) and seed.ndim else 1

    def begin(
        self,
        buckets: Sequence[Bucket],
        gradients: Any,  # Gradients of every bucket, or None
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
        self.launches = Launches(self.tables, skip)
        self.launches.lasting = not is_capturing(self.tables[0].device)

    def run(self, ops: Sequence[Ready], noise: Any, polish: bool | None) -> None:
        self.energies: list[Tensor] = []
        if any(isinstance(x, Tensor) for op in ops for x in op.numbers):  # computed of what this step owes
            self.launches.lasting = False
        parts = split(ops)
        for bucket, table in zip(self.buckets, self.tables, strict=True):
            with torch.cuda.device_of(table.tensors):  # type: ignore[no-untyped-call] # launched where parameters are
                for part in parts:
                    takes_up, is_last = self.adopts and part is parts[0], part is parts[-1]
                    for call in self._calls(bucket, table, part, noise.clock, polish, takes_up, is_last):
                        self.launches.calls.append((table.tensors, call))
                        call()
        self.adopts = False

    def _calls(
        self,
        bucket: Bucket,
        table: Table,
        ops: Sequence[Ready],
        clock: Tensor,
        polish: bool | None,
        takes_up: bool,
        is_last: bool,
    ) -> Iterator[Callable[[], Any]]:
        """The launches of a part of a stage on one bucket."""
        space = bucket.space
        letters, normals = codes(tuple([(op.letter, op.draw is not None) for op in ops]))
        numbers, draws, owed = table.numbers(ops, self.decay)
        skip = clock if self.skip is None else self.skip
        if {clock.device, owed.device, skip.device} != {bucket.device}:  # of a group on several GPUs
            clock, owed, skip = (x.to(bucket.device) for x in (clock, owed, skip))
            self.launches.lasting = False
        energy = is_last and polish is None and table.has_momentum
        rounding = torch.finfo(bucket.precision).eps if bucket.narrow else 0.0
        places = (table.tensors, table.gradients, numbers, draws, owed, table.seeds(self.seed), clock, skip)
        strides = numbers.shape[1], int(self.replicas > 1)
        options = {
            "LETTERS": letters,
            "NORMALS": normals,
            "LENGTH": len(ops),
            "MOMENTUM": table.has_momentum,
            "FORCE": self.has_force,
            "DECAY": isinstance(self.decay, Tensor) or self.decay != 0.0,
            "SKIP": self.skip is not None,
            "ENERGY": energy,
            "TAKE_UP": takes_up,
            "PERMUTED": table.permuted,
            "WEIGHT": TYPES[bucket.precision],
            "GRADIENT": TYPES[table.gradient_dtype],
        }
        if isinstance(space, Sphere):
            limit = 1 - inset(space.margin, bucket.precision)
            radius_stride = int(has_many_radii(space, table.radii))
            for chunks in table.rows:
                sums = self._sums(chunks.size, energy, table)
                yield partial(
                    step_rows[(chunks.size,)],
                    chunks.table, *places, sums, self.sign, rounding, limit, radius_stride,
                    *strides, SLACK=space.has_slack, LANE_COUNT=chunks.lanes, ROW_COUNT=ROWS,
                    num_warps=WARPS[chunks.lanes], **options,
                )  # fmt: skip
            if table.blocks is not None:
                yield from self._calls_on_blocks(table, space, places, (rounding, limit, radius_stride), options)
        else:
            circle = isinstance(space, Circle)
            several = isinstance(getattr(space, "radius", None), Tensor)
            radius = float(space.radius) if circle and not several else 1.0  # type: ignore[attr-defined]
            limit = 1 - inset(space.margin, bucket.precision) if circle else 1.0  # type: ignore[attr-defined]
            sums = self._sums(table.entries.size, energy, table)
            yield partial(
                step_entries[(table.entries.size,)],
                table.entries.table, *places, sums, self.sign, radius, limit, rounding,
                torch.finfo(bucket.precision).tiny, *strides, CIRCLE=circle, RADII=several,
                FINISH=is_last and polish is not None,
                num_warps=8 if normals else 4, **options,
            )  # fmt: skip

    def _calls_on_blocks(
        self,
        table: Table,
        space: Sphere,
        places: Sequence[Tensor],
        numbers_of_space: tuple[float, float, int],
        options: dict[str, Any],
    ) -> Iterator[Callable[[], Any]]:
        """The launches of a stage on rows that are too long for one program instance."""
        assert table.blocks is not None
        tensors, gradients, numbers, draws, owed, seeds, clock, skip = places
        chunks, blocks, products, terms = table.blocks
        energies = self._sums(len(blocks), options["ENERGY"], table)
        strides = numbers.shape[1], int(self.replicas > 1)
        of_letters = ("LETTERS", "NORMALS", "LENGTH", "MOMENTUM", "DECAY", "SKIP", "ENERGY", "TAKE_UP")
        of_chunks = {name: options[name] for name in ("MOMENTUM", "FORCE", "WEIGHT", "GRADIENT")}
        of_chunks["DRAWS"] = max(options["NORMALS"] >> 4 * i & 15 for i in range(options["LENGTH"] or 1))
        yield partial(
            sum_products[(len(chunks),)], chunks, tensors, gradients, draws, seeds, clock, products, strides[1],
            num_warps=8, **of_chunks,
        )  # fmt: skip
        yield partial(
            run_letters[(len(blocks),)], blocks, tensors, numbers, draws, owed, seeds, clock, skip, products, terms,
            energies, self.sign, *numbers_of_space, *strides, SLACK=space.has_slack, num_warps=4,
            **{name: options[name] for name in of_letters},
        )  # fmt: skip
        yield partial(
            add_terms[(len(chunks),)], chunks, tensors, gradients, draws, seeds, clock, skip, terms, strides[1],
            SKIP=options["SKIP"], num_warps=8, **of_chunks,
        )  # fmt: skip

    def _sums(self, count: int, energy: bool, table: Table) -> Tensor:
        """What program instances write their sums of p² to; any tensor where they write none."""
        if not energy:
            return table.tensors
        sums = torch.empty(count, device=table.device)
        self.energies.append(sums)
        return sums

    def kinetic_energy(self, replica_dims: int) -> Tensor:
        parts = [sums.view(self.replicas, -1).sum(1) for sums in self.energies]
        total = torch.stack([x.to(parts[0].device) for x in parts]).sum(0)
        return total if replica_dims else total[0]

    def positions(self) -> list[Tensor]:
        return [p.detach() for bucket in self.buckets for p in bucket.params]

    def end(self, skip: Tensor | None) -> None:
        count_writes(self.buckets)
        self.buckets[0].kept["launches"] = self.launches


def split(ops: Sequence[Ready]) -> list[list[Ready]]:
    """The letters of a stage, cut where kernels have no more draws."""
    parts, draws = [list[Ready]()], 0
    for op in ops:
        if op.draw is not None:
            if draws == MAX_DRAWS:
                parts.append([])
                draws = 0
            draws += 1
        parts[-1].append(op)
    return parts


@lru_cache(maxsize=256)
def codes(ops: tuple[tuple[str, bool], ...]) -> tuple[int, int]:
    """The letters of a launch, and which draw each takes, four bits each; ``ops`` are letters and whether they draw."""
    letters = normals = draws = 0
    for i, (letter, draws_noise) in enumerate(ops):
        letters |= LETTER[letter] << 4 * i
        if draws_noise:
            draws += 1
            normals |= draws << 4 * i
    return letters, normals
