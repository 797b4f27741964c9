"""The only module that talks to other ranks. What it sends is counted.

Every function is called by all ranks of its process groups, in the same order. Groups of one rank send nothing.
:data:`traffic` counts calls and bytes by kind of collective; the bytes are those that this rank puts in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .._torch import gather_into

Groups = tuple[Any, ...]
"""Process groups; a reduction over all of them, one after the other, goes over the ranks of a mesh."""
T = TypeVar("T")
E = TypeVar("E", bound=Exception)


@dataclass
class Traffic:
    """Collectives that this process took part in, by kind: all_reduce, all_gather, all_to_all, objects."""

    calls: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str, size: int) -> None:
        self.calls[kind] += 1
        self.bytes[kind] += size


traffic = Traffic()
"""What was sent since the process started."""


@contextmanager
def counted() -> Iterator[Traffic]:
    """What is sent inside the block."""
    found, calls, sizes = Traffic(), Counter(traffic.calls), Counter(traffic.bytes)
    try:
        yield found
    finally:
        found.calls, found.bytes = traffic.calls - calls, traffic.bytes - sizes


def groups_of(mesh: Any, dims: Sequence[int]) -> Groups:
    """The process groups of these dimensions of a mesh: one for all of them where they make up the world."""
    dims = [m for m in dims if mesh.size(m) > 1]
    if not dims:
        return ()
    if len(dims) == 1:
        return (mesh.get_group(dims[0]),)
    size = 1
    for m in dims:
        size *= mesh.size(m)
    if size == dist.get_world_size():
        return (dist.group.WORLD,)
    return tuple(mesh.get_group(m) for m in dims)


def union(several: Iterable[Groups]) -> Groups:
    """The process groups whose reductions, one after the other, reach every rank that any of these reach.

    A group whose ranks are all in another one is left out. The same on all ranks that list the groups in one order.
    """
    distinct = list({id(group): group for groups in several for group in groups}.values())
    ranks = [set(dist.get_process_group_ranks(group)) for group in distinct]
    kept: list[int] = []
    for i in sorted(range(len(distinct)), key=lambda i: -len(ranks[i])):
        if not any(ranks[i] <= ranks[j] for j in kept):
            kept.append(i)
    return tuple(distinct[i] for i in sorted(kept))


def size_of(group: Any) -> int:
    """How many ranks a process group has."""
    return int(dist.get_world_size(group))


def reduced(values: Sequence[tuple[Tensor, Groups]], op: str = "sum") -> list[Tensor]:
    """Every value summed over its groups (``op="max"``: the largest), one all-reduce for all values of equal groups.

    Values of any shapes. Where a value has several groups it takes one all-reduce for each of them. Results are the
    same on all ranks, bit for bit.
    """
    found: list[Tensor] = [x for x, _ in values]
    classes: dict[tuple[Any, ...], list[int]] = {}
    for i, (x, groups) in enumerate(values):
        classes.setdefault((tuple(map(id, groups)), x.dtype, x.device), []).append(i)
    for members in classes.values():
        groups = values[members[0]][1]
        if not groups:
            continue
        flat = torch.cat([found[i].reshape(-1) for i in members])
        for group in groups:
            traffic.note("all_reduce", flat.numel() * flat.element_size())
            dist.all_reduce(flat, dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM, group=group)
        for i, part in zip(members, torch.split(flat, [found[i].numel() for i in members]), strict=True):
            found[i] = part.reshape(found[i].shape)
    return found


def gathered(part: Tensor, groups: Groups) -> list[Tensor]:
    """The flat tensors of all ranks of the groups, all of one length: for a single group in the order of its ranks.

    With several groups the ranks of the last one come first in the list: (…, second, first) as its row-major order.
    """
    flat = part.reshape(-1).contiguous()
    parts = 1
    for group in groups:
        size = dist.get_world_size(group)
        traffic.note("all_gather", flat.numel() * flat.element_size())
        whole = flat.new_empty(size * flat.numel())
        gather_into(whole, flat, group)
        flat, parts = whole, parts * size
    return list(torch.split(flat, flat.numel() // parts)) if flat.numel() else [flat] * parts


def exchanged(parts: Sequence[Tensor], sizes: Sequence[int], group: Any) -> list[Tensor]:
    """Send the flat tensor ``parts[r]`` to every rank r of the group; ``sizes[r]`` entries come from rank r."""
    sent = torch.cat([part.reshape(-1) for part in parts])
    came = sent.new_empty(sum(sizes))
    traffic.note("all_to_all", sent.numel() * sent.element_size())
    dist.all_to_all_single(came, sent, list(sizes), [part.numel() for part in parts], group=group)
    return list(torch.split(came, list(sizes)))


def gathered_objects(value: T, groups: Groups) -> list[T]:
    """The values of all ranks of the groups: any objects that can be pickled. For construction, not for steps."""
    values = [value]
    for group in groups:
        found: list[Any] = [None] * dist.get_world_size(group)
        traffic.note("objects", 0)
        dist.all_gather_object(found, values, group=group)
        values = [x for several in found for x in several]
    return values


GROUPS_DIFFER = (
    "ranks were given different groups",
    "Build the optimizer from the same model, in the same order, on every rank",
)


def agree(
    problem: Exception | None,
    signature: Iterable[str],
    groups: Groups,
    kind: type[E],
    differ: tuple[str, str] = GROUPS_DIFFER,
    then: str = "so no rank does",
) -> None:
    """Raise on all ranks if one of them has a problem, or if their signatures differ.

    A rank with a problem raises that. The others raise a ``kind`` that says which rank met what, and ``then`` what was
    done about it. Signatures are lists of lines; the first one that differs is shown, between the two sentences of
    ``differ``.
    """
    if not groups:
        if problem is not None:
            raise problem
        return
    own = list(signature)
    mine = None if problem is None else f"{type(problem).__name__}: {problem}"
    found = gathered_objects((dist.get_rank(), mine, own), groups)
    if problem is not None:
        raise problem
    for rank, theirs, _ in found:
        if theirs is not None:
            raise kind(f"rank {rank} could not go on, {then}. There: {theirs}")
    for rank, _, lines in found:
        if lines != own:
            first, number = (found[0][2], found[0][0]) if rank == dist.get_rank() else (own, dist.get_rank())
            place = next((i for i, (a, b) in enumerate(zip(first, lines)) if a != b), min(len(first), len(lines)))
            show = [x[place] if place < len(x) else "nothing" for x in (first, lines)]
            raise kind(f"{differ[0]}: {show[0]} on rank {number}, {show[1]} on rank {rank}. {differ[1]}")
