"""Buckets of parameters whose blocks lie on one rank each: letters work on local tensors as on any others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._random.philox import Part
from .._step.buckets import Bucket, State
from ..constraints import Constraint, Free
from .kinds import local_space
from .shards import Piece, is_sharded, local, piece_of, writes
from .state import local_state


def freedom_of(space: Constraint, shape: torch.Size) -> int:
    """Degrees of freedom of a whole parameter."""
    return space.degrees_of_freedom(torch.empty(shape, device="meta"))


class LocalBucket(Bucket):
    """Parameters of one group, mesh and placement: local tensors of DTensors, and local state.

    ``space`` is that of whole parameters. Sizes, degrees of freedom and the numbers of noise are those of whole
    parameters, too: nothing that is decided by them differs between ranks.
    """

    def __init__(self, space: Constraint, given: list[Tensor], whole_states: list[State], names: list[str]) -> None:
        self.pieces = [piece_of(p) for p in given]
        self.whole_states, self.whole_space = whole_states, space
        states = list(map(local_state, whole_states))
        super().__init__(local_space(space, self.pieces[0]), list(map(local, given)), states, names)
        self.given = given
        self.constrained_ids = list(map(id, given)) if self.constrained else []
        self.elements = sum(p.numel() for p in given)
        self.counts, self.groups = self.pieces[0].counts_here, self.pieces[0].everyone
        self.starts = [piece.start for piece in self.pieces]

    def _count_freedom(self, space: Constraint) -> int:
        return sum(freedom_of(self.whole_space, piece.shape) for piece in self.pieces)

    def writes(self) -> list[int]:
        return list(map(writes, self.given)) if self.constrained else []

    def check_view(self, p: Tensor, name: str) -> None:
        self.space.check(local(p).detach(), name)

    def units(self) -> list[Bucket]:
        each = zip(self.given, self.whole_states, self.names, strict=True)
        return [LocalBucket(self.whole_space, [p], [state], [name]) for p, state, name in each]

    def _part(self, where: list[int]) -> Bucket:
        given, states = [self.given[i] for i in where], [self.whole_states[i] for i in where]
        return LocalBucket(self.whole_space, given, states, [self.names[i] for i in where])

    def _locate(self) -> list[list[Any]]:
        self.params = list(map(local, self.given))
        self.constrained = [] if isinstance(self.space, Free) else self.params
        for state, whole in zip(self.states, self.whole_states, strict=True):
            state.clear()
            state.update(local_state(whole))
        return super()._locate()

    def _keep_readable(self, number: int, moved: State) -> None:
        for name, x in moved.items():
            found = self.space.readable(x)
            if found is not x:
                whole = self.whole_states[number]
                whole[name] = piece_of(whole[name]).spread(found) if is_sharded(whole[name]) else found
                self.states[number][name] = found

    def _noise_parts(self, slots: Sequence[str]) -> list[Part | None]:
        found: list[Part | None] = [part_of(piece) for piece in self.pieces]
        for slot in slots:
            values = [state[slot] for state in self.whole_states]
            found += [part_of(piece_of(x)) if is_sharded(x) else None for x in values]
        return found


def part_of(piece: Piece) -> Part | None:
    return None if piece.is_whole else Part(piece.shape, piece.offset)
