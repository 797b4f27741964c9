"""How a space works on a parameter that is spread over ranks: on what is here, in sums, or on the whole.

*Local*: every block lies on one rank. Entries of Free and Circle always do, rows under ``Shard(0)``, columns under
``Shard(1)``, the matrices of a stack that is cut between matrices, and everything that is replicated.
*Summed*: blocks of spheres that several ranks hold parts of; norms and products are sums over these ranks.
*Gathered*: everything else, matrices of :class:`~holonom.constraints.Orthogonal` and level sets.
"""

from __future__ import annotations

import copy
import math
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..constraints import Circle, Constraint, Free, Sphere
from ..constraints.views import View, Viewed
from .shards import Piece


class Kind(Enum):
    LOCAL = "local"
    SUMMED = "summed"
    GATHERED = "gathered"


class Axis(NamedTuple):
    """A dimension of a parameter that tells blocks apart: element i of it belongs to block i // step."""

    dim: int
    step: int = 1


def axes_of(space: Constraint, shape: torch.Size) -> list[Axis]:
    """The dimensions that tell the blocks of a space of matrices apart, in the order blocks are counted."""
    if not isinstance(space, Viewed):
        raise TypeError(f"{space!r} has no blocks")
    reading, ndim = space.reading, len(shape)
    if reading is None:
        batch, output, blocks = max(ndim - 2, getattr(space, "replica_dims", 0)), ndim - 2, 1
    else:
        batch, output, blocks = reading.batch, reading.batch + reading.output, reading.blocks
    found = [Axis(d) for d in range(batch)]
    if ndim == batch + 1:  # a vector is a row
        return found
    if reading is None and space.per in ("row", "column"):
        return [Axis(d) for d in range(ndim) if d != (ndim - 1 if space.per == "row" else ndim - 2)]
    if space.per == "row":
        return [*found, Axis(output)]
    if space.per == "column":
        return found + [Axis(d) for d in range(batch, ndim) if d != output]
    return [*found, Axis(output, shape[output] // blocks)] if blocks > 1 else found


def lead_of(space: Constraint, shape: torch.Size) -> torch.Size:
    """The dimensions of a view that count blocks."""
    view = space.view(torch.empty(shape, device="meta"))
    return view.shape[:-1] if isinstance(space, Sphere) else view.shape[:-2]


def kind_of(space: Constraint, piece: Piece) -> Kind:
    """How a space works on a parameter."""
    if space.traits.joint:
        return Kind.GATHERED
    if piece.is_whole or isinstance(space, (Free, Circle)):
        return Kind.LOCAL
    if isinstance(space, Viewed) and block_piece(space, piece) is not None:
        return Kind.LOCAL
    return Kind.SUMMED if isinstance(space, Sphere) else Kind.GATHERED


def block_piece(space: Constraint, piece: Piece) -> Piece | None:
    """Where the blocks lie that this rank holds, in a tensor of one number a block; None if ranks share blocks."""
    lead, axes = lead_of(space, piece.shape), axes_of(space, piece.shape)
    if len(lead) != len(axes) or any(d not in [axis.dim for axis in axes] for d in piece.dims):
        return None
    places = {axis.dim: i for i, axis in enumerate(axes)}
    reading: Any = getattr(space, "reading", None)
    packed = reading is not None and reading.blocks > 1
    blocks = piece.with_shape(lead, places)
    for coordinate in piece.coordinates():
        (offset, size), (first, count) = piece.box(coordinate), blocks.box(coordinate)
        for d in piece.dims:
            i, step = places[d], axes[places[d]].step
            if (size[d] and offset[d] != step * first[i]) or size[d] != step * count[i]:
                return None
            if packed and d == reading.batch + reading.output and count[i] < 2:
                return None  # a single block is viewed in another shape
    return blocks


def local_space(space: Constraint, piece: Piece) -> Constraint:
    """The space of the local tensor: with the radii, and the number of blocks, that lie here."""
    if piece.is_whole:
        return space
    radius: Any = getattr(space, "radius", None)
    several = isinstance(radius, Tensor) and radius.ndim > 0
    if isinstance(space, Circle) and several:
        other = copy.copy(space)
        other.radius = piece.narrow(torch.broadcast_to(radius, piece.shape)).contiguous()
        return other
    blocks = block_piece(space, piece) if isinstance(space, Viewed) else None
    if blocks is None:
        return space
    if several and isinstance(space, Sphere):
        space = copy.copy(space)
        space.radius = blocks.narrow(radius.reshape(blocks.shape)).contiguous()
    reading = getattr(space, "reading", None)
    if isinstance(space, Viewed) and isinstance(reading, View) and reading.blocks > 1:
        place = reading.batch
        here = blocks.local_shape[place]
        if here != reading.blocks:
            space = space.read_by(View(reading.batch, reading.output, here))
    return space


def block_numbers(space: Constraint, piece: Piece) -> Tensor:
    """The number of the block of every local element, of shape (n, 1, …): 1 where a dimension does not tell."""
    found = torch.zeros((1,) * len(piece.shape), dtype=torch.int64)
    counts = [-(-piece.shape[axis.dim] // axis.step) for axis in axes_of(space, piece.shape)]
    for i, axis in enumerate(axes_of(space, piece.shape)):
        own = (piece.offset[axis.dim] + torch.arange(piece.local_shape[axis.dim])) // axis.step
        shape = [1] * len(piece.shape)
        shape[axis.dim] = len(own)
        found = found + (own * math.prod(counts[i + 1 :])).reshape(shape)
    return found
