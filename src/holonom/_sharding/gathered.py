"""Parameters whose steps need the whole tensor: one rank owns it, gets the gradient and sends the weight back.

The owner keeps the whole weight and its momentum, and moves them as a model of its own would. A step takes one
all-to-all of gradients and one of weights for all matrices of a mesh. Owners are chosen by cost, so that every rank has
about the same to do. Where one function takes all tensors of a group (a joint level set), where a parameter is cut by
several dimensions of a mesh that have no process group in common, and for all level sets, every rank owns the whole.
The parameter's own state, which checkpoints hold, lies as the parameter does. It is written when somebody reads it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._step.buckets import MOVED, Bucket, State
from .._step.joint import JointBucket
from ..constraints import Constraint
from . import collectives
from .collectives import Groups
from .shards import is_sharded, local, piece_of, whole, writes

EVERYONE = -1
UNSEEN = -1  # how often a weight was written that its owner has not taken over


class Gathered:
    """One parameter, and on its owner the whole of it.

    Args:
        p: the parameter.
        state: its state, which lies as the parameter does.
        owner: the number of the owner in the parameter's process group, or :data:`EVERYONE`.
    """

    def __init__(self, p: Tensor, state: State, owner: int) -> None:
        self.p, self.state, self.owner = p, state, owner
        self.piece = piece_of(p) if is_sharded(p) else None
        group = self.group
        self.here = owner == EVERYONE or group is None or dist.get_rank(group) == owner
        q = whole(p.detach()).clone() if self.piece is None else whole(p.detach())
        moved = {name: whole(state[name]) for name in MOVED if name in state}
        self.q: Tensor | None = q if self.here else None
        # Slack variables and sizes are whole already, and shared with the parameter's own state.
        self.whole_state: State = {**state, **moved} if self.here else {}
        self.seen = UNSEEN  # the first step checks the weights

    @property
    def group(self) -> Any:
        """The process group that the parameter is exchanged in; None where every rank owns it."""
        if self.piece is None or self.owner == EVERYONE:
            return None
        return self.piece.holders[0]

    @property
    def counts(self) -> bool:
        """Whether sums over all ranks of the mesh count what is here."""
        if self.piece is None:
            return True
        return self.piece.counts_here if self.owner != EVERYONE else not any(self.piece.coordinate)

    @property
    def groups(self) -> Groups:
        return () if self.piece is None else self.piece.everyone

    @property
    def was_edited(self) -> bool:
        return writes(self.p) != self.seen


def cost_of(space: Constraint, p: Tensor) -> float:
    """Of a step: products of a tall matrix with a square one."""
    view = space.view(torch.empty(p.shape, device="meta"))
    return float(p.numel() * (min(view.shape[-2:]) if view.ndim > 1 else 1))


def owners(params: Sequence[tuple[Constraint, Tensor]]) -> list[int]:
    """The owner of every parameter: matrices of one shape follow each other, the next goes to the least loaded rank."""
    found, loads = [EVERYONE] * len(params), dict[int, list[float]]()
    costs = [cost_of(space, p) for space, p in params]
    for i in sorted(range(len(params)), key=lambda i: (-costs[i], tuple(params[i][1].shape), i)):
        space, p = params[i]
        if not is_sharded(p) or not space.traits.stacked:
            continue
        groups = piece_of(p).holders
        if len(groups) == 1:
            load = loads.setdefault(id(groups[0]), [0.0] * dist.get_world_size(groups[0]))
            found[i] = load.index(min(load))
            load[found[i]] += costs[i]
    return found


class GatheredBucket(Bucket):
    """Parameters that this rank owns the whole of."""

    def __init__(self, space: Constraint, members: list[Gathered], names: list[str]) -> None:
        self.members = members
        params = [member.q for member in members if member.q is not None]
        super().__init__(space, params, [member.whole_state for member in members], names)
        self.given = [member.p for member in members]
        self.elements = sum(p.numel() for p in params)
        self.counts, self.groups = members[0].counts, members[0].groups

    def units(self) -> list[Bucket]:
        return [GatheredBucket(self.space, [m], [name]) for m, name in zip(self.members, self.names, strict=True)]

    def _part(self, where: list[int]) -> Bucket:
        return GatheredBucket(self.space, [self.members[i] for i in where], [self.names[i] for i in where])


class GatheredJointBucket(JointBucket):
    """The parameters of a joint group, the whole of them on every rank."""

    def __init__(self, space: Constraint, members: list[Gathered], names: list[str]) -> None:
        self.members = members
        params = [member.q for member in members if member.q is not None]
        super().__init__(space, params, [member.whole_state for member in members], names)
        self.given = [member.p for member in members]
        self.counts, self.groups = members[0].counts, members[0].groups


def collect(members: Sequence[Gathered], parts: Sequence[Tensor]) -> list[Tensor | None]:
    """The whole tensors of local parts, one for every parameter, on their owners."""
    found: list[Tensor | None] = [None] * len(members)
    for own in _classes(members, parts):
        first = members[own[0]]
        if first.group is None:
            for i in own:
                piece = members[i].piece
                found[i] = parts[i] if piece is None else piece.assembled(parts[i])
            continue
        senders, me = first.piece.senders, dist.get_rank(first.group)  # type: ignore[union-attr]
        sent = [_joined(parts, [i for i in own if members[i].owner == rank]) for rank in range(len(senders))]
        mine = [i for i in own if members[i].owner == me]
        boxes = {i: [_box(members[i], rank) for rank in range(len(senders))] for i in mine}
        sizes = [sum(math.prod(boxes[i][rank][1]) for i in mine) for rank in range(len(senders))]
        came = collectives.exchanged(sent, sizes, first.group)
        for i in mine:
            found[i] = parts[i].new_empty(members[i].p.shape)
        for rank, flat in enumerate(came):
            at = 0
            for i in mine:
                box = boxes[i][rank]
                size, target = math.prod(box[1]), found[i]
                assert target is not None
                _narrow(members[i], target, box).copy_(flat[at : at + size].reshape(box[1]))
                at += size
    return found


def deal(members: Sequence[Gathered], wholes: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of :func:`collect`: the local parts of what owners hold, in the shapes and dtypes of ``like``."""
    found = list(like)
    for own in _classes(members, found):
        first = members[own[0]]
        if first.group is None:
            for i in own:
                piece, value = members[i].piece, wholes[i]
                assert value is not None
                found[i] = value if piece is None else piece.narrow(value)
            continue
        senders, me = first.piece.senders, dist.get_rank(first.group)  # type: ignore[union-attr]
        mine = [i for i in own if members[i].owner == me]
        sent = []
        for rank in range(len(senders)):
            parts = [_narrow(members[i], wholes[i], _box(members[i], rank)).reshape(-1) for i in mine]  # type: ignore[arg-type]
            sent.append(torch.cat(parts) if parts else found[own[0]].new_empty(0))
        theirs = [[i for i in own if members[i].owner == rank] for rank in range(len(senders))]
        sizes = [sum(found[i].numel() for i in indices) for indices in theirs]
        for indices, flat in zip(theirs, collectives.exchanged(sent, sizes, first.group), strict=True):
            pieces = torch.split(flat, [found[i].numel() for i in indices])
            for i, part in zip(indices, pieces, strict=True):
                found[i] = part.reshape(found[i].shape)
    return found


def _classes(members: Sequence[Gathered], parts: Sequence[Tensor]) -> list[list[int]]:
    """Which of them are exchanged together: those of one process group and dtype."""
    found: dict[Any, list[int]] = {}
    for i, (member, part) in enumerate(zip(members, parts, strict=True)):
        found.setdefault((id(member.group), part.dtype), []).append(i)
    return list(found.values())


def _joined(parts: Sequence[Tensor], indices: Sequence[int]) -> Tensor:
    return torch.cat([parts[i].reshape(-1) for i in indices]) if indices else parts[0].new_empty(0)


def _box(member: Gathered, rank: int) -> Any:
    assert member.piece is not None
    return member.piece.box(member.piece.senders[rank])


def _narrow(member: Gathered, x: Tensor, box: Any) -> Tensor:
    assert member.piece is not None
    return member.piece.narrow(x, box)


def regather(members: Sequence[Gathered]) -> None:
    """Take over weights that were written from outside since the last step."""
    for member, q in zip(members, collect(members, [local(m.p).detach() for m in members]), strict=True):
        if member.q is not None and q is not None and not torch.equal(member.q, q):
            member.q.copy_(q)
        member.seen = writes(member.p)


def send_weights(members: Sequence[Gathered]) -> None:
    """Write what owners have moved into the parameters."""
    places = [local(member.p).detach() for member in members]
    for member, place, part in zip(members, places, deal(members, [m.q for m in members], places), strict=True):
        place.copy_(part)
        member.seen = writes(member.p)


def send_momenta(members: Sequence[Gathered]) -> None:
    """Write owners' momenta into the parameters' own state."""
    for name in MOVED:
        own = [member for member in members if name in member.state]
        places = [local(member.state[name]) for member in own]
        parts = deal(own, [member.whole_state.get(name) for member in own], places)
        for place, part in zip(places, parts, strict=True):
            place.copy_(part)
