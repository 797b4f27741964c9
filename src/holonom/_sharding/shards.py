"""What a DTensor parameter is to holonom: a plain local tensor, and a record of where that lies in the whole.

A :class:`Piece` is a box in the logical tensor: an offset and a size in every dimension. FSDP2, tensor parallelism and
both together place parameters so. Everything that depends on the whole tensor (its shape, the numbers of its elements,
who else holds them) is computed from the record, without communication.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._torch import placement_kind, version
from .collectives import Groups, gathered, groups_of

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offset and size in every dimension


def is_sharded(x: Any) -> bool:
    """Whether x is a DTensor, replicated ones included."""
    distributed = sys.modules.get("torch.distributed.tensor")  # a slow import; before it there are no DTensors
    return distributed is not None and isinstance(x, distributed.DTensor)


@dataclass(frozen=True)
class Piece:
    """Where a local tensor lies in its parameter.

    Args:
        mesh: the DeviceMesh of the parameter.
        placements: one for every dimension of the mesh.
        shape: of the whole tensor.
        coordinate: of this rank in the mesh.
    """

    mesh: Any = field(repr=False)
    placements: tuple[Any, ...]
    shape: torch.Size
    coordinate: tuple[int, ...]

    @cached_property
    def offset(self) -> tuple[int, ...]:
        """Where the local tensor starts in every dimension."""
        return self.box(self.coordinate)[0]

    @cached_property
    def local_shape(self) -> torch.Size:
        return torch.Size(self.box(self.coordinate)[1])

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Of the logical row-major order: element (i, j, …) of the whole has the number Σ index·stride."""
        return tuple(math.prod(self.shape[d + 1 :]) for d in range(len(self.shape)))

    @cached_property
    def start(self) -> int | None:
        """The number of the first local element in the whole; None if, on some rank, they do not follow each other."""
        if math.prod(self.shape[: max(self.dims, default=0)]) > 1:
            return None
        return sum(first * stride for first, stride in zip(self.offset, self.strides, strict=True))

    @cached_property
    def dims(self) -> dict[int, tuple[int, ...]]:
        """The dimensions of the tensor that are cut, and the dimensions of the mesh that cut them."""
        cut: dict[int, tuple[int, ...]] = {}
        for mesh_dim, placement in enumerate(self.placements):
            _, dim, _ = placement_kind(placement)
            if dim is not None and self.mesh.size(mesh_dim) > 1:
                cut[dim] = (*cut.get(dim, ()), mesh_dim)
        return cut

    @property
    def is_whole(self) -> bool:
        """Whether every rank has the whole tensor."""
        return not self.dims

    @cached_property
    def cutting(self) -> tuple[int, ...]:
        """The dimensions of the mesh over which the tensor is spread; it is repeated over the others."""
        return tuple(sorted(m for dims in self.dims.values() for m in dims))

    @cached_property
    def counts_here(self) -> bool:
        """Whether this rank's copy is the one that sums over all ranks of the mesh count."""
        return not any(c for m, c in enumerate(self.coordinate) if m not in self.cutting)

    @cached_property
    def everyone(self) -> Groups:
        """The process groups whose sums go over all ranks of the mesh."""
        return groups_of(self.mesh, tuple(range(self.mesh.ndim)))

    @cached_property
    def holders(self) -> Groups:
        """The process groups whose sums go over the ranks that together hold the tensor once."""
        return groups_of(self.mesh, self.cutting)

    def box(self, coordinate: Sequence[int]) -> Box:
        """Offset and size of what the rank at this coordinate of the mesh holds, as ``torch.chunk`` cuts.

        A strided shard, as FSDP2 makes of what tensor parallelism has cut already, is cut after the other.
        """
        offset, size = [0] * len(self.shape), list(self.shape)
        kinds = [(m, *placement_kind(placement)) for m, placement in enumerate(self.placements)]
        for m, _, dim, _strided in sorted(kinds, key=lambda kind: kind[-1]):
            if dim is not None:
                step = -(-size[dim] // self.mesh.size(m))
                start = min(coordinate[m] * step, size[dim])
                offset[dim] += start
                size[dim] = min(step, size[dim] - start)
        return tuple(offset), tuple(size)

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        """The coordinates of the ranks that together hold the tensor once, this one's copy."""
        ranges = [
            range(n) if m in self.cutting else (c,) for m, (n, c) in enumerate(zip(self.mesh.shape, self.coordinate))
        ]
        return product(*ranges)

    def rank_at(self, coordinate: Sequence[int]) -> int:
        """The global rank at a coordinate of the mesh."""
        return int(self.mesh.mesh[tuple(coordinate)])

    @cached_property
    def senders(self) -> list[tuple[int, ...]]:
        """The coordinates of the ranks whose parts :func:`collectives.gathered` of ``holders`` gives, in its order."""
        found = [
            [tuple((self.mesh.mesh == rank).nonzero()[0].tolist()) for rank in dist.get_process_group_ranks(group)]
            for group in self.holders
        ]
        if len(found) <= 1:
            return found[0] if found else [self.coordinate]
        dims = [m for m in self.cutting if self.mesh.size(m) > 1]
        orders = [[c[m] for c in own] for m, own in zip(dims, found, strict=True)]
        coordinates = []
        for values in product(*reversed(orders)):
            by_dim = dict(zip(reversed(dims), values, strict=True))
            coordinates.append(tuple(by_dim.get(m, c) for m, c in enumerate(self.coordinate)))
        return coordinates

    def assembled(self, part: Tensor) -> Tensor:
        """The whole tensor, gathered from all ranks that hold parts of it; a copy, and the same on all of them."""
        if self.is_whole:
            return part.clone(memory_format=torch.contiguous_format)
        boxes = [self.box(coordinate) for coordinate in self.senders]
        most = max(math.prod(size) for _, size in boxes)
        padded = part.new_zeros(most)
        padded[: part.numel()] = part.reshape(-1)
        whole = part.new_empty(self.shape)
        for box, flat in zip(boxes, gathered(padded, self.holders), strict=True):
            self.narrow(whole, box).copy_(flat[: math.prod(box[1])].reshape(box[1]))
        return whole

    def narrow(self, whole: Tensor, box: Box | None = None) -> Tensor:
        """This rank's part, or another box, of a whole tensor of the parameter's shape: a view."""
        for dim, (start, length) in enumerate(zip(*(box or (self.offset, self.local_shape)), strict=True)):
            if length != whole.shape[dim]:
                whole = whole.narrow(dim, start, length)
        return whole

    def spread(self, part: Tensor) -> Tensor:
        """The DTensor of this mesh, these placements and this shape whose local tensor is ``part``."""
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            part, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.strides
        )

    def with_shape(self, shape: torch.Size, dims: dict[int, int]) -> Piece:
        """The record of another tensor that is cut along with this one: its dimension ``dims[d]`` as dimension d.

        Where a dimension is left out, the other tensor is repeated.
        """
        from torch.distributed.tensor import Replicate, Shard

        placements: list[Any] = []
        for placement in self.placements:
            _, dim, strided = placement_kind(placement)
            if dim is None or dim not in dims:
                placements.append(Replicate())
            elif dims[dim] == dim:
                placements.append(placement)
            else:
                placements.append(strided_like(placement, dims[dim]) if strided else Shard(dims[dim]))
        return Piece(self.mesh, tuple(placements), shape, self.coordinate)


def strided_like(placement: Any, dim: int) -> Any:
    """A strided shard of another dimension."""
    return type(placement)(dim, split_factor=placement.split_factor)


def piece_of(x: Tensor) -> Piece:
    """The record of a DTensor."""
    mesh, placements = x.device_mesh, tuple(x.placements)  # type: ignore[attr-defined]
    return Piece(mesh, placements, x.shape, tuple(mesh.get_coordinate() or ()))


def local(x: Tensor) -> Tensor:
    """The plain tensor of this rank, sharing memory with the DTensor; a plain tensor as it is."""
    if not is_sharded(x):
        return x
    with nullcontext() if not torch.is_grad_enabled() else torch.no_grad():  # steps are without gradients already
        part: Tensor = x.to_local()  # type: ignore[attr-defined]
    return part.wait() if hasattr(part, "wait") else part


def writes(x: Tensor) -> int:
    """How often a tensor was written in place: as a DTensor, which torch counts apart, or through its local tensor."""
    return version(x) + (version(local(x)) if is_sharded(x) else 0)


def whole(x: Tensor) -> Tensor:
    """All of a DTensor as a plain tensor, gathered; a plain tensor as it is."""
    return piece_of(x).assembled(local(x).detach()) if is_sharded(x) else x.detach()


def write_(x: Tensor, values: Tensor) -> None:
    """Write a whole tensor into a parameter: this rank's part of it into a DTensor."""
    local(x).detach().copy_(piece_of(x).narrow(values) if is_sharded(x) else values)


def refuse_placement(x: Tensor, name: str) -> None:
    """Raise for a DTensor parameter that cannot be worked on. Others raise with it: see :func:`collectives.agree`."""
    mesh = x.device_mesh  # type: ignore[attr-defined]
    if mesh.get_coordinate() is None:
        raise ValueError(f"{name} lies on a mesh that this rank is no part of: give it to the ranks of {mesh}")
    piece, part = piece_of(x), local(x)
    for placement in piece.placements:
        kind, dim, _ = placement_kind(placement)
        if kind == "partial":
            raise ValueError(
                f"{name} is placed as {placement}: its ranks hold terms of a sum, which cannot be moved one by one. "
                f"Redistribute it to Replicate() or Shard(dim) before building the optimizer"
            )
        if kind == "other" or (dim is not None and not 0 <= dim < x.ndim):
            raise ValueError(f"{name} is placed as {placement}, which holonom does not know; use Shard or Replicate")
    _refuse_order(piece, name)
    if part.is_meta:
        raise ValueError(
            f"{name} is on the meta device: materialise the sharded model (model.to_empty(device=...)) and initialise "
            f"its weights before building the optimizer"
        )
    if part.device.type != mesh.device_type:
        raise ValueError(
            f"{name} lies on {part.device}, its mesh on {mesh.device_type}: parameters that are offloaded to the CPU "
            f"cannot be reduced over their mesh. Leave out CPUOffloadPolicy, or give the mesh that device"
        )
    if part.shape != piece.local_shape:
        raise ValueError(
            f"{name} of shape {tuple(x.shape)} has {tuple(part.shape)} on this rank, where {piece.placements} on a "
            f"mesh of {tuple(mesh.shape)} put {tuple(piece.local_shape)} by torch.chunk: other cuts are not supported. "
            f"Use distribute_tensor, or make the sizes divisible"
        )


def _refuse_order(piece: Piece, name: str) -> None:
    """torch cuts a tensor by the ranks of process groups, which it sorts, whatever order a mesh has them in."""
    for m in piece.cutting:
        place: tuple[Any, ...] = (*piece.coordinate[:m], slice(None), *piece.coordinate[m + 1 :])
        ranks = piece.mesh.mesh[place].tolist()
        if ranks != dist.get_process_group_ranks(piece.mesh.get_group(m)):
            raise ValueError(
                f"{name} is cut along a dimension of its mesh that has the ranks {ranks}, in this order; torch cuts in "
                f"ascending order. Build the mesh by init_device_mesh, or with ascending ranks"
            )


def described(x: Tensor) -> str:
    """What ranks must agree on about a parameter."""
    if not is_sharded(x):
        return f"{tuple(x.shape)} {x.dtype}"
    piece = piece_of(x)
    names = piece.mesh.mesh_dim_names
    mesh = "×".join(map(str, piece.mesh.shape)) + (f" {names}" if names else "")
    return f"{tuple(x.shape)} {x.dtype} {piece.placements} on {mesh}"
