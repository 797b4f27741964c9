"""Kernels after another optimizer's step, of what ``spheres`` and ``bounds`` in :mod:`holonom._constrain` say.

On a sphere a new block is a multiple of the old one plus a multiple of what the optimizer made of it. A block that
fits into the registers of one program instance is read once and written once, in one launch for all blocks of about
one length. Longer ones take three: one sums the products of the old block and its move, chunk by chunk; one makes the
two factors of every block; one writes the blocks. Nothing depends on the order in which instances run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from .tables import is_capturing, keep_for_replays, upload

SHORTEST, LONGEST = 256, 8192  # entries that an instance has registers for; kernels exist for each power of two
CHUNK = 4096  # entries of a longer block that one instance takes
PER_WARP = 1024  # entries of a block: most rows need one warp, which sums without waiting for others
UPDATES = {"plain": 0, "tangent": 1, "angular": 2}


@triton.jit
def factors_of(
    old2, along, move2, r, lr, dropped, on_sphere, at_bound, largest, smallest,
    UPDATE: tl.constexpr, BOUNDED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The factors of the old block and of the optimizer's, from w·w, w·Δ and Δ·Δ in double precision, Δ = w' − w.

    Where the old block is not needed, ``old2`` is w'·w'.
    """
    of_old = 0.0 * r
    of_new = of_old + 1.0
    if UPDATE == 0 and not DROPS:
        norm = tl.sqrt(old2)  # the optimizer's
        off = norm > r * (1 + on_sphere) if BOUNDED else tl.abs(norm - r) > on_sphere * r
        off = off & (norm > 0)
        of_new = tl.where(off, r / tl.where(off, norm, 1.0), 1.0)
    else:
        still = move2 == 0
        if UPDATE == 1:
            part = tl.where(old2 > 0, along / tl.where(old2 > 0, old2, 1.0), 0.0)
            if BOUNDED:
                part = tl.where((tl.sqrt(old2) >= r * (1 - at_bound)) & (part > 0), part, 0.0)
            of_old = -part
        elif UPDATE == 0:
            of_old += dropped
        rest2 = move2
        if DROPS:  # Δ + lr·λ·w takes the place of Δ
            rest2 = tl.maximum(move2 + 2 * dropped * along + dropped * dropped * old2, 0.0)
        if UPDATE == 2:
            of_old = tl.minimum(tl.sqrt(rest2) / (lr * r), largest) - (1 - dropped)
        if DROPS:
            of_old = tl.where(tl.sqrt(rest2) <= smallest * r, largest, of_old)
        # n = of_old·w + w' = (of_old + 1)·w + Δ
        norm2 = (of_old + 1) * (of_old + 1) * old2 + 2 * (of_old + 1) * along + move2
        norm = tl.sqrt(tl.maximum(norm2, 0.0))
        outside = norm > r if BOUNDED else norm > 0
        scale = tl.where(outside, r / tl.where(outside, norm, 1.0), 1.0)
        of_old = tl.where(still, 0.0, scale * of_old)
        of_new = tl.where(still, 1.0, scale)
    return of_old.to(tl.float32), of_new.to(tl.float32)


@triton.jit
def hold_rows(
    rows, tensors, radii, radius_stride, lr, dropped, on_sphere, at_bound, largest, smallest,
    LANES: tl.constexpr, ALIGNED: tl.constexpr, UPDATE: tl.constexpr, BOUNDED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """A block from registers: its sums, its factors, and what becomes of it.

    ``ALIGNED``: blocks begin at multiples of 16 bytes and are as long, so that four entries are one load.
    """
    row = rows + 4 * tl.program_id(0).to(tl.int64)
    place = tensors + 2 * tl.load(row)
    start = tl.load(row + 1)
    length = (tl.load(row + 2) - start).to(tl.int32)
    r = tl.load(radii + tl.load(row + 3) * radius_stride).to(tl.float64)
    lanes = tl.arange(0, LANES)
    new_at = tl.load(place).to(tl.pointer_type(tl.float32)) + start
    if ALIGNED:
        length, new_at = tl.multiple_of(length, 4), tl.multiple_of(new_at, 16)
    mask = lanes < length
    new = tl.load(new_at + lanes, mask, 0.0)
    if UPDATE == 0 and not DROPS:
        oo = tl.sum(new * new).to(tl.float64)
        of_old, of_new = factors_of(
            oo, oo, oo, r, lr, dropped, on_sphere, at_bound, largest, smallest, UPDATE, BOUNDED, DROPS
        )
        moved = of_new * new
    else:
        old_at = tl.load(place + 1).to(tl.pointer_type(tl.float32)) + start
        if ALIGNED:
            old_at = tl.multiple_of(old_at, 16)
        old = tl.load(old_at + lanes, mask, 0.0)
        move = new - old
        oo, om, mm = tl.sum(old * old), tl.sum(old * move), tl.sum(move * move)
        of_old, of_new = factors_of(
            oo.to(tl.float64), om.to(tl.float64), mm.to(tl.float64),
            r, lr, dropped, on_sphere, at_bound, largest, smallest, UPDATE, BOUNDED, DROPS,
        )  # fmt: skip
        moved = of_new * new + of_old * old
    length = tl.where(of_old != 0, length, tl.where(of_new != 1, length, 0))  # a block that stays is not written
    tl.store(new_at + lanes, moved, lanes < length)


@triton.jit
def sum_moves(chunks, tensors, sums, SIZE: tl.constexpr, PLAIN: tl.constexpr):
    """w·w, w·Δ and Δ·Δ of a chunk, where Δ = w' − w; w'·w' where the old block is not needed."""
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.load(chunks + 4 * chunk)
    at = tl.load(chunks + 4 * chunk + 1) + tl.arange(0, SIZE)
    mask = at < tl.load(chunks + 4 * chunk + 2)
    new_at = tl.load(tensors + 2 * tensor).to(tl.pointer_type(tl.float32))
    new = tl.load(new_at + at, mask, 0.0)
    if PLAIN:
        tl.store(sums + 4 * chunk, tl.sum(new * new))
    else:
        old_at = tl.load(tensors + 2 * tensor + 1).to(tl.pointer_type(tl.float32))
        old = tl.load(old_at + at, mask, 0.0)
        move = new - old
        tl.store(sums + 4 * chunk, tl.sum(old * old))
        tl.store(sums + 4 * chunk + 1, tl.sum(old * move))
        tl.store(sums + 4 * chunk + 2, tl.sum(move * move))


@triton.jit
def make_factors(
    blocks, sums, factors, radii, radius_stride, lr, dropped, on_sphere, at_bound, largest, smallest,
    UPDATE: tl.constexpr, BOUNDED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    start = tl.load(blocks + 3 * block)
    chunks = tl.load(blocks + 3 * block + 1)
    r = tl.load(radii + tl.load(blocks + 3 * block + 2) * radius_stride).to(tl.float64)
    lanes = tl.arange(0, 128)
    zeros = tl.zeros((128,), tl.float64)
    oo, om, mm = zeros, zeros, zeros
    for begin in range(0, chunks, 128):
        at = sums + 4 * (start + begin + lanes)
        mask = begin + lanes < chunks
        oo += tl.load(at, mask, 0.0).to(tl.float64)
        if UPDATE != 0 or DROPS:
            om += tl.load(at + 1, mask, 0.0).to(tl.float64)
            mm += tl.load(at + 2, mask, 0.0).to(tl.float64)
    of_old, of_new = factors_of(
        tl.sum(oo), tl.sum(om), tl.sum(mm),
        r, lr, dropped, on_sphere, at_bound, largest, smallest, UPDATE, BOUNDED, DROPS,
    )  # fmt: skip
    tl.store(factors + 2 * block, of_old)
    tl.store(factors + 2 * block + 1, of_new)


@triton.jit
def write_blocks(chunks, tensors, factors, SIZE: tl.constexpr, PLAIN: tl.constexpr):
    # The last chunks come first: they were summed last, and are in the cache.
    chunk = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    tensor = tl.load(chunks + 4 * chunk)
    at = tl.load(chunks + 4 * chunk + 1) + tl.arange(0, SIZE)
    block = tl.load(chunks + 4 * chunk + 3)
    of_old = tl.load(factors + 2 * block)
    of_new = tl.load(factors + 2 * block + 1)
    end = tl.load(chunks + 4 * chunk + 2)
    end = tl.where(of_old != 0, end, tl.where(of_new != 1, end, 0))  # a block that stays is not written
    mask = at < end
    new_at = tl.load(tensors + 2 * tensor).to(tl.pointer_type(tl.float32))
    moved = of_new * tl.load(new_at + at, mask, 0.0)
    if not PLAIN:
        old_at = tl.load(tensors + 2 * tensor + 1).to(tl.pointer_type(tl.float32))
        moved += of_old * tl.load(old_at + at, mask, 0.0)
    tl.store(new_at + at, moved, mask)


@triton.jit
def bound_entries(chunks, tensors, bound, SIZE: tl.constexpr):
    """Move to the bound what is beyond it; nothing else is written."""
    chunk = tl.program_id(0).to(tl.int64)
    at = tl.load(chunks + 4 * chunk + 1) + tl.arange(0, SIZE)
    mask = at < tl.load(chunks + 4 * chunk + 2)
    q_at = tl.load(tensors + 2 * tl.load(chunks + 4 * chunk)).to(tl.pointer_type(tl.float32)) + at
    q = tl.load(q_at, mask, 0.0)
    tl.store(q_at, tl.where(q > 0, bound, -bound), mask & (tl.abs(q) > bound))


def kernel_for(length: int) -> tuple[int, bool]:
    """The lanes of the kernel for blocks of this length, and whether four entries may be one load."""
    return max(triton.next_power_of_2(length), SHORTEST), length % 4 == 0


def fits(new: Sequence[Tensor], old: Sequence[Tensor], numbers: Sequence[Any]) -> bool:
    """Whether there are kernels for these blocks, and for numbers that the host has."""
    plain = all(x.dtype == torch.float32 and x.is_contiguous() for x in (*new, *old))
    return plain and not any(isinstance(x, Tensor) for x in numbers)


class Table:
    """Where blocks lie: tensor, first entry, end of the block, and a number, for each program instance.

    rows: for each kernel (its lanes, and whether lengths are multiples of four) the blocks that it takes; the number is
        that of the block, which has a radius.
    chunks: of longer blocks, with the number of the block among these, and the end of the block.
    blocks: of the longer ones the first chunk, how many they are, and the number of the block.

    ``longest``, a power of two or 0: blocks of more entries are cut into chunks.
    """

    def __init__(self, new: Sequence[Tensor], longest: int = LONGEST) -> None:
        device = new[0].device
        counts = torch.tensor([x.numel() // x.shape[-1] for x in new])
        tensor = torch.repeat_interleave(torch.arange(len(new)), counts)
        number = torch.arange(len(tensor))
        length = torch.tensor([x.shape[-1] for x in new])[tensor]
        before = torch.cumsum(counts, 0) - counts  # blocks of the tensors before
        start = (number - before[tensor]) * length
        table = torch.stack([tensor, start, start + length, number], 1)
        kernels = [kernel_for(x.shape[-1]) for x in new]
        self.rows = []
        for kernel in sorted({kernel for kernel in kernels if kernel[0] <= longest}):
            own = torch.tensor([kernel == other for other in kernels])
            self.rows.append((kernel, table[own[tensor]].to(device)))
        long = table[length > longest]
        chunks = (long[:, 2] - long[:, 1] + CHUNK - 1) // CHUNK
        first = torch.cumsum(chunks, 0) - chunks
        block = torch.repeat_interleave(torch.arange(len(long)), chunks)
        within = (torch.arange(len(block)) - first[block]) * CHUNK
        self.chunks = torch.stack([long[block, 0], long[block, 1] + within, long[block, 2], block], 1).to(device)
        self.blocks = torch.stack([first, chunks, long[:, 3]], 1).to(device)
        self.sums = torch.zeros(len(block), 4, device=device)
        self.factors = torch.zeros(len(long), 2, device=device)
        self._addresses: list[tuple[int, int]] = []
        self._tensors = self.chunks
        self._radius: Any = None
        self._radii = self.factors

    def tensors(self, new: Sequence[Tensor], old: Sequence[Tensor]) -> Tensor:
        """The addresses of new and old tensors."""
        before = [x.data_ptr() for x in old] or [0] * len(new)
        addresses = list(zip(map(Tensor.data_ptr, new), before, strict=True))
        if addresses == self._addresses:
            return self._tensors
        found = upload(addresses, torch.int64, new[0].device)
        if not is_capturing(new[0].device):  # a captured copy runs with the replay only
            self._addresses, self._tensors = addresses, found
        return found

    def radii(self, radius: float | Tensor) -> Tensor:
        """One radius, or one a block; made again when it is another object."""
        if radius is self._radius:
            return self._radii
        device = self.sums.device
        if isinstance(radius, Tensor):
            found = radius.to(device, torch.float32).contiguous()
        else:
            found = upload([radius], torch.float32, device)
        if not is_capturing(device):
            self._radius, self._radii = radius, found
        return found


def hold_(
    update: str,
    bounded: bool,
    new: Sequence[Tensor],
    old: Sequence[Tensor],
    radius: float | Tensor,
    lr: float,
    dropped: float,
    table: Table,
    limits: tuple[float, float, float, float],
) -> None:
    """``limits``: within what a block is on its sphere, or its bound is active, the largest factor of an angle, and the
    smallest move beside a decay that is left out, by the radius."""
    drops = dropped != 0
    plain = update == "plain" and not drops
    tensors, radii = table.tensors(new, old), table.radii(radius)
    if is_capturing(new[0].device):
        keep_for_replays(table, tensors, radii)
    numbers = (radii, int(radii.numel() > 1), float(lr), float(dropped), *limits)
    aligned = not any(x.data_ptr() % 16 for x in (*new, *old))
    kind = {"UPDATE": UPDATES[update], "BOUNDED": bounded, "DROPS": drops}
    with torch.cuda.device_of(table.sums):  # type: ignore[no-untyped-call]
        for (lanes, quads), rows in table.rows:
            options = {"LANES": lanes, "ALIGNED": quads and aligned, **kind, "num_warps": max(lanes // PER_WARP, 1)}
            hold_rows[len(rows),](rows, tensors, *numbers, **options)
        if len(table.blocks):
            chunks, options = (len(table.chunks),), {"SIZE": CHUNK, "PLAIN": plain, "num_warps": 8}
            sum_moves[chunks](table.chunks, tensors, table.sums, **options)
            make_factors[len(table.blocks),](table.blocks, table.sums, table.factors, *numbers, **kind, num_warps=4)
            write_blocks[chunks](table.chunks, tensors, table.factors, **options)
    increment_version(new)


def bound_(blocks: Sequence[Tensor], bound: float, table: Table) -> None:
    """Every entry to [−bound, bound]; ``table``: whole tensors in chunks."""
    tensors = table.tensors(blocks, ())
    if is_capturing(blocks[0].device):
        keep_for_replays(table, tensors)
    with torch.cuda.device_of(tensors):  # type: ignore[no-untyped-call]
        bound_entries[len(table.chunks),](table.chunks, tensors, float(bound), SIZE=CHUNK, num_warps=8)
    increment_version(blocks)
