"""Replicas over ranks: which are whose, and values of all of them side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import EnsembleError
from .collectives import gathered, gathered_objects, groups_of


def share(replicas: int, rank: int, size: int) -> tuple[int, int]:
    """The first replica of a rank, and how many it has."""
    start = rank * replicas // size
    return start, (rank + 1) * replicas // size - start


class Shares:
    """R replicas over the ranks of a mesh of one dimension, the whole of them ``repeats`` times over.

    Member g·R + i is replica i under the grid's value g; a rank has its replicas under every value. All ranks of the
    mesh build this together, with equal arguments.
    """

    def __init__(self, mesh: Any, replicas: int, repeats: int, arguments: tuple[Any, ...]) -> None:
        self.mesh, self.replicas, self.repeats = mesh, replicas, repeats
        if getattr(mesh, "ndim", None) != 1:
            raise EnsembleError(
                f"mesh must be a DeviceMesh of one dimension, such as init_device_mesh('cpu', (4,)); got {mesh!r}"
            )
        if mesh.get_coordinate() is None:
            raise EnsembleError(f"this rank is no part of the mesh {mesh}: build the ensemble on its ranks only")
        self._groups = groups_of(mesh, (0,))
        different = {str(found) for found in gathered_objects((replicas, repeats, *arguments), self._groups)}
        if len(different) > 1:
            raise EnsembleError(
                f"ranks ask for different ensembles, with (replicas, repeats, seed, first) = "
                f"{' and '.join(sorted(different))}: give the same on every rank"
            )
        if replicas < mesh.size():
            raise EnsembleError(
                f"{replicas} replicas cannot be split over {mesh.size()} ranks: ask for at least {mesh.size()}"
            )
        self.first, self.count = share(replicas, mesh.get_local_rank(), mesh.size())

    def __deepcopy__(self, memo: Any) -> Shares:
        return self  # process groups are not copied

    def mine(self, values: Tensor) -> Tensor:
        """Of (R·repeats, …), those of this rank's members."""
        if not values.ndim or values.shape[0] != self.replicas * self.repeats:
            raise EnsembleError(
                f"share() takes one value for each of the {self.replicas * self.repeats} members on all ranks, got "
                f"shape {tuple(values.shape)}"
            )
        grids = values.reshape(self.repeats, self.replicas, *values.shape[1:])
        return grids[:, self.first : self.first + self.count].flatten(0, 1)

    def gather(self, values: Tensor) -> Tensor:
        """(R·repeats, …) from this rank's values, on every rank."""
        if not values.ndim or values.shape[0] != self.count * self.repeats:
            raise EnsembleError(
                f"gather() takes one value for each of this rank's {self.count * self.repeats} members, got shape "
                f"{tuple(values.shape)}"
            )
        size = self.mesh.size()
        counts = [share(self.replicas, rank, size)[1] for rank in range(size)]
        own = values.detach().to(self.mesh.device_type).reshape(self.repeats, self.count, *values.shape[1:])
        padded = own.new_zeros(self.repeats, max(counts), *values.shape[1:])
        padded[:, : self.count] = own
        parts = gathered(padded, self._groups) if self._groups else [padded.reshape(-1)]
        grids = [part.view(padded.shape)[:, :count] for part, count in zip(parts, counts, strict=True)]
        return torch.cat(grids, 1).flatten(0, 1).to(values.device)
