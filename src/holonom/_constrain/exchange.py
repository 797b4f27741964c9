"""Whole tensors on the ranks that own them: shards of many parameters go there and back by one all-to-all each.

Every parameter that the ranks of a group hold shards of has one owner among them. What its owner does takes time, so
that owners are chosen by cost. A parameter that is spread over several groups, none of which has all shards, is
gathered by every rank instead, and every rank does the same work.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._sharding.collectives import exchanged
from .._sharding.shards import Box, Piece
from ..constraints.base import widened
from .claims import Claim


def owners_of(costs: Sequence[float], ranks: int) -> list[int]:
    """Who owns what, so that the largest sum of costs is small: the most expensive first, to who has the least."""
    load, found = [0.0] * ranks, [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        found[i] = load.index(min(load))
        load[found[i]] += costs[i]
    return found


class Exchange:
    """Shards of some parameters, all cut over the same process groups.

    Args:
        pieces: where this rank's shards lie.
        costs: of what is done with each whole tensor.
    """

    def __init__(self, pieces: Sequence[Piece], costs: Sequence[float]) -> None:
        self.pieces, groups = list(pieces), pieces[0].holders
        self.group = groups[0] if len(groups) == 1 else None
        self.size = dist.get_world_size(self.group) if self.group is not None else 1
        self.rank = dist.get_rank(self.group) if self.group is not None else 0
        self.owners = owners_of(costs, self.size)
        self.boxes = [self._boxes(piece) for piece in self.pieces] if self.group is not None else []

    @property
    def mine(self) -> list[int]:
        """The numbers of the parameters that this rank owns."""
        return [i for i, owner in enumerate(self.owners) if owner == self.rank]

    def _boxes(self, piece: Piece) -> list[Box]:
        """What every rank of the group holds, in the group's order."""
        ranks = dist.get_process_group_ranks(self.group)
        by_rank = {ranks.index(piece.rank_at(c)): piece.box(c) for c in piece.coordinates()}
        return [by_rank[rank] for rank in range(self.size)]

    def gather(self, shards: Sequence[Sequence[Tensor]]) -> dict[int, list[Tensor]]:
        """The whole tensors of what this rank owns; ``shards[i]`` are those of parameter i, one or several."""
        if self.group is None:
            return {i: [self.pieces[i].assembled(x) for x in own] for i, own in enumerate(shards)}
        sent: list[list[Tensor]] = [[] for _ in range(self.size)]
        for owner, own in zip(self.owners, shards, strict=True):
            sent[owner] += [x.reshape(-1) for x in own]
        counts = [len(own) for own in shards]
        sizes = [sum(counts[i] * math.prod(self.boxes[i][rank][1]) for i in self.mine) for rank in range(self.size)]
        like = next(x for own in shards for x in own)
        came = exchanged([_joined(parts, like) for parts in sent], sizes, self.group)
        found = {i: [like.new_empty(self.pieces[i].shape) for _ in range(counts[i])] for i in self.mine}
        for rank, flat in enumerate(came):
            at = 0
            for i in self.mine:
                box = self.boxes[i][rank]
                for whole in found[i]:
                    part = self.pieces[i].narrow(whole, box)
                    part.copy_(flat[at : at + part.numel()].view(part.shape))
                    at += part.numel()
        return found

    def scatter(
        self, wholes: Mapping[int, Tensor], failed: Collection[int], like: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """This rank's shards of whole tensors that their owners have, and for each whether it failed there: 1 or 0."""
        if self.group is None:
            flags = _flags(range(len(self.pieces)), failed, like)
            return [self.pieces[i].narrow(wholes[i]) for i in range(len(self.pieces))], list(flags)
        own = _flags(self.mine, failed, like)
        sent = []
        for rank in range(self.size):
            parts = [self.pieces[i].narrow(wholes[i], self.boxes[i][rank]).reshape(-1) for i in self.mine]
            sent.append(_joined([*parts, own], like))
        theirs = [[i for i, owner in enumerate(self.owners) if owner == rank] for rank in range(self.size)]
        here = [math.prod(piece.local_shape) for piece in self.pieces]
        came = exchanged(sent, [sum(here[i] for i in several) + len(several) for several in theirs], self.group)
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for several, flat in zip(theirs, came, strict=True):
            *parts, noted = torch.split(flat, [*(here[i] for i in several), len(several)])
            for i, part, flag in zip(several, parts, noted, strict=True):
                found[i] = part.view(self.pieces[i].local_shape), flag
        shards, own_flags = zip(*(found[i] for i in range(len(self.pieces))), strict=True)
        return list(shards), list(own_flags)


def _flags(numbers: Sequence[int], failed: Collection[int], like: Tensor) -> Tensor:
    """Filled on the device: a copy from the host would wait for it, and cannot be captured."""
    flags = like.new_zeros(len(numbers))
    for flag, number in zip(flags, numbers, strict=True):
        if number in failed:
            flag.fill_(1.0)
    return flags


def _joined(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat(list(parts)) if parts else like.new_empty(0)


def exchange_of(claims: Sequence[Claim]) -> Exchange:
    """The exchange of parameters that all are cut over the same process groups: :func:`alike`."""
    return Exchange([piece for claim in claims if (piece := claim.piece) is not None], list(map(_cost, claims)))


def alike(claims: Sequence[Claim]) -> list[list[int]]:
    """The numbers of the claims that one exchange can serve, as lists."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for i, claim in enumerate(claims):
        if (piece := claim.piece) is not None:
            key = (tuple(map(id, piece.holders)), widened(claim.tensor).dtype, claim.tensor.device)
            found.setdefault(key, []).append(i)
    return list(found.values())


def _cost(claim: Claim) -> float:
    """About what a product of a block with its s × s Gram matrix takes, for all blocks."""
    reach = claim.space.reach(claim.parameter.shape) or tuple(claim.parameter.shape)
    sides = sorted(size for size in reach if size > 1)
    return float(claim.parameter.numel()) * (sides[-2] if len(sides) > 1 else 1)
