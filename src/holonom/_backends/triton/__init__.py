"""The backend of GPUs: a stage of all tensors of a bucket in one launch, by Triton.

It does what :func:`holonom._step.integrate.integrate` says. Kernels work on the parameters and the state themselves; a
step that is skipped writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..._step.buckets import MOVED, Bucket, State
from ..._step.integrate import Eager, Scalar
from ..._step.letters import Ready
from ...constraints import Circle, Free, Sphere, View
from ...constraints.base import Constraint, inset
from ...scheme import compile_word
from .blocks import add_terms, run_letters, sum_products
from .entries import CHUNK, LETTER, find_non_finite, step_entries
from .launches import Launches, count_writes
from .rows import ROWS, step_rows
from .tables import Table, channels_of, has_many_radii, is_capturing, lanes_for, table_of

if TYPE_CHECKING:
    from ..._step.run import Gradients

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}  # tables.READABLE
WARPS = {64: 1, 256: 2, 1024: 8, 4096: 16}  # by the lanes of a kernel for rows
REGISTERS = {256: 128, 1024: 128}
"""The same, where ptxas would give a thread up to 255: a multiprocessor holds 16 warps of 128."""
MAX_DRAWS = 2  # of one launch
Launch: TypeAlias = tuple[Any, int, tuple[Any, ...], dict[str, Any]]
"""A kernel, how many instances of it, its arguments, and those by name."""


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
                table.entries.table, table.tensors, table.gradients, flag, TYPES[table.gradient_dtype], CHUNK,
                num_warps=2,
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
                    found = list(self._calls(bucket, table, part, noise.clock, polish, takes_up, is_last))
                    if not table.is_compiled:
                        compile_together(found, table.device)
                    for kernel, count, arguments, options in found:
                        call = partial(kernel[(count,)], *arguments, **options)
                        self.launches.calls.append((table.tensors, call))
                        call()
                table.is_compiled = True
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
    ) -> Iterator[Launch]:
        """The launches of a part of a stage on one bucket."""
        space, arguments = bucket.space, tuple[Any, ...]()
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
                arguments = chunks.table, *places, sums, self.sign, rounding, limit, radius_stride, *strides
                of_rows = {
                    "SLACK": space.has_slack, "LANE_COUNT": chunks.lanes, "ROW_COUNT": ROWS,
                    "num_warps": WARPS[chunks.lanes],
                }  # fmt: skip
                if chunks.lanes in REGISTERS and torch.version.hip is None:  # ROCm's compiler has no such option
                    of_rows["maxnreg"] = REGISTERS[chunks.lanes]
                yield step_rows, chunks.size, arguments, options | of_rows
            if table.blocks is not None:
                yield from self._calls_on_blocks(table, space, places, (rounding, limit, radius_stride), options)
        else:
            circle = isinstance(space, Circle)
            several = isinstance(getattr(space, "radius", None), Tensor)
            radius = float(space.radius) if circle and not several else 1.0  # type: ignore[attr-defined]
            limit = 1 - inset(space.margin, bucket.precision) if circle else 1.0  # type: ignore[attr-defined]
            sums = self._sums(table.entries.size, energy, table)
            tiny = torch.finfo(bucket.precision).tiny
            arguments = table.entries.table, *places, sums, self.sign, radius, limit, rounding, tiny, *strides
            of_entries = {
                "CIRCLE": circle, "RADII": several, "FINISH": is_last and polish is not None, "SIZE": CHUNK,
                "num_warps": 8 if normals else 4,
            }  # fmt: skip
            yield step_entries, table.entries.size, arguments, options | of_entries

    def _calls_on_blocks(
        self,
        table: Table,
        space: Sphere,
        places: Sequence[Tensor],
        numbers_of_space: tuple[float, float, int],
        options: dict[str, Any],
    ) -> Iterator[Launch]:
        """The launches of a stage on rows that are too long for one program instance."""
        assert table.blocks is not None
        tensors, gradients, numbers, draws, owed, seeds, clock, skip = places
        chunks, blocks, products, terms = table.blocks
        energies = self._sums(len(blocks), options["ENERGY"], table)
        strides = numbers.shape[1], int(self.replicas > 1)
        of_letters = ("LETTERS", "NORMALS", "LENGTH", "MOMENTUM", "DECAY", "SKIP", "ENERGY", "TAKE_UP")
        of_chunks = {name: options[name] for name in ("MOMENTUM", "FORCE", "WEIGHT", "GRADIENT")}
        of_chunks["DRAWS"] = max(options["NORMALS"] >> 4 * i & 15 for i in range(options["LENGTH"] or 1))
        arguments = chunks, tensors, gradients, draws, seeds, clock
        yield sum_products, len(chunks), (*arguments, products, strides[1]), {**of_chunks, "num_warps": 8}
        yield run_letters, len(blocks), (
            blocks, tensors, numbers, draws, owed, seeds, clock, skip, products, terms, energies, self.sign,
            *numbers_of_space, *strides,
        ), {**{name: options[name] for name in of_letters}, "SLACK": space.has_slack, "num_warps": 4}  # fmt: skip
        of_chunks["SKIP"] = options["SKIP"]
        yield add_terms, len(chunks), (*arguments, skip, terms, strides[1]), {**of_chunks, "num_warps": 8}

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


def compile_together(launches: Sequence[Launch], device: torch.device) -> None:
    """Compile the kernels of these launches in threads; Triton would compile one after another when it launches them.

    Triton 3.3 and 3.4 have no such mode, and its interpreter has nothing to compile.
    """
    if len(launches) > 1 and device.type == "cuda" and hasattr(triton, "AsyncCompileMode"):
        with ThreadPoolExecutor() as threads, triton.AsyncCompileMode(threads):
            for kernel, count, arguments, options in launches:
                kernel.warmup(*arguments, grid=(count,), **options)


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
