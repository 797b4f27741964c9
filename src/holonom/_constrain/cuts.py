"""How the shards of a parameter cut the blocks of its space, and sums over blocks that several ranks hold.

A block is a box of entries, the same number of them along every dimension (:meth:`Constraint.reach`), so that blocks
make up a grid. A shard is a box as well. It is divided into *sections*, boxes in which blocks lie regularly.
"""

from __future__ import annotations

from functools import cached_property
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from .._sharding.collectives import Groups, groups_of
from .._sharding.shards import Piece
from ..constraints.views import blocks_along


class Section(NamedTuple):
    """A part of a shard that has equally many entries of every block it touches.

    Args:
        where: the part, of the shard.
        blocks: the blocks, of the grid.
        shape: (blocks, entries of each) along every dimension.
    """

    where: tuple[slice, ...]
    blocks: tuple[slice, ...]
    shape: tuple[int, ...]

    def of(self, shard: Tensor) -> Tensor:
        """The part as (blocks, entries, blocks, entries, …), a view."""
        return shard[self.where].view(self.shape)

    def sums(self, a: Tensor, b: Tensor) -> Tensor:
        """Σ ab over the entries of every block, in double precision."""
        inner = tuple(range(1, len(self.shape), 2))
        return (self.of(a) * self.of(b)).sum(inner, dtype=torch.float64)

    def column(self, grid: Tensor, like: Tensor) -> Tensor:
        """One number a block, so that it broadcasts against the part."""
        own = grid[self.blocks].to(like.dtype)
        return own.reshape([n for size in own.shape for n in (size, 1)])


class Cut:
    """What the shards of a parameter do to blocks that reach so far.

    Args:
        piece: where this rank's shard lies.
        reach: the entries of a block along every dimension.
    """

    def __init__(self, piece: Piece, reach: tuple[int, ...]) -> None:
        self.piece, self.reach = piece, reach

    @cached_property
    def crossed(self) -> tuple[int, ...]:
        """The dimensions of the tensor along which some rank's shard ends inside a block."""
        found = set()
        for coordinate in self.piece.coordinates():
            offset, size = self.piece.box(coordinate)
            for d in self.piece.dims:
                ends = (offset[d], offset[d] + size[d]) if size[d] else ()
                if any(end % self.reach[d] for end in ends):
                    found.add(d)
        return tuple(sorted(found))

    @cached_property
    def groups(self) -> Groups:
        """The process groups that together have all of every block."""
        return groups_of(self.piece.mesh, sorted(m for d in self.crossed for m in self.piece.dims[d]))

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """How many blocks the whole tensor has along every dimension."""
        return tuple(blocks_along(size, g) for size, g in zip(self.piece.shape, self.reach, strict=True))

    @cached_property
    def span(self) -> tuple[slice, ...]:
        """Of the grid, the blocks that the ranks of ``groups`` touch."""
        each = zip(self.grid, self.reach, self.piece.offset, self.piece.local_shape, strict=True)
        return tuple(
            slice(0, n) if d in self.crossed else slice(a // g, (a + size) // g) if g else slice(0, 0)
            for d, (n, g, a, size) in enumerate(each)
        )

    @cached_property
    def touched(self) -> tuple[int, ...]:
        """How many blocks those are along every dimension."""
        return tuple(own.stop - own.start for own in self.span)

    @cached_property
    def sections(self) -> list[Section]:
        """The parts of this rank's shard; their blocks are counted from the first of the span."""
        return _sections(self, [own.start for own in self.span])

    @cached_property
    def all_sections(self) -> list[Section]:
        """The same; blocks are counted from the first of the grid."""
        return _sections(self, [0 for _ in self.grid])

    def sums(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Add this rank's part of Σ ab of every block of the span, or of the grid, to ``out``, by its shape."""
        sections = self.sections if out.shape == self.touched else self.all_sections
        for section in sections:
            out[section.blocks] += section.sums(a, b)


def _sections(cut: Cut, first: list[int]) -> list[Section]:
    each = zip(cut.piece.offset, cut.piece.local_shape, cut.reach, first, strict=True)
    ranges = [_ranges(start, size, g, origin) for start, size, g, origin in each]
    found = []
    for chosen in product(*ranges):
        where, blocks = tuple(own[0] for own in chosen), tuple(own[1] for own in chosen)
        found.append(Section(where, blocks, tuple(n for own in chosen for n in own[2:])))
    return found


def _ranges(start: int, size: int, reach: int, origin: int) -> list[tuple[slice, slice, int, int]]:
    """The end of a block, whole blocks, and the beginning of another: which entries, which blocks, and how many."""
    stop = start + size
    inner, outer = min(-(-start // reach) * reach, stop) if size else 0, stop // reach * reach if size else 0
    ends = [(start, inner), (inner, max(inner, outer)), (max(inner, outer), stop)] if size else []
    found = []
    for a, b in ends:
        if a < b:
            count = max(1, (b - a) // reach)
            block = a // reach - origin
            found.append((slice(a - start, b - start), slice(block, block + count), count, (b - a) // count))
    return found
