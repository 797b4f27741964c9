"""Groups whose tensors are constrained together: one vector, one phase, slack variables in the first one's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from .._random.philox import Layout
from .._sharding.shards import is_sharded, whole, write_
from .._torch import copy_
from ..constraints.base import Constraint
from .buckets import Bucket, State
from .integrate import Normals, Phase


class JointBucket(Bucket):
    """All parameters of a group as one vector, behind the dimensions of replicas and batches."""

    def __init__(self, space: Constraint, params: list[Tensor], states: list[State], names: list[str]) -> None:
        super().__init__(space.joined(params, names), params, states, names)
        self._replica_dims = leading(self.space)

    def _count_freedom(self, space: Constraint) -> int:
        return space.degrees_of_freedom(joined(space, self.params))

    @property
    def _joins(self) -> bool:
        return True

    def units(self) -> list[Bucket]:
        return [self]

    def select(self, chosen: Sequence[bool]) -> Bucket | None:
        if any(chosen) and not all(chosen):
            without = [name for name, yes in zip(self.names, chosen, strict=True) if not yes]
            raise RuntimeError(
                f"{', '.join(without)} has no gradient, but {self.space!r} constrains it together with others of its "
                f"group, which have: all of them move, or none. Let the loss depend on it, give it a gradient of "
                f"zeros, or leave it out of the group"
            )
        return self if all(chosen) else None

    def phases(self) -> list[Phase]:
        self.refresh()
        return self.load(self.views(), copy=True)

    def keep_momenta(self, phases: Sequence[Phase]) -> None:
        self._keep(self.views(), phases[0], None, ("p",), ("slack_p",))

    def load(self, views: list[Phase], copy: bool) -> list[Phase]:
        first = views[0]
        slack, slack_p = (None if x is None else x.clone() for x in (first.slack, first.slack_p))
        p = None if first.p is None else self._join([x.p for x in views])
        return self._widened([Phase(self._join([x.q for x in views]), p, slack, slack_p)])

    def store(self, views: list[Phase], phases: Sequence[Phase], skip: Tensor | None) -> None:
        self._keep(views, phases[0], skip, ("q", "p"), ("slack", "slack_p"))

    def _keep(
        self, views: list[Phase], phase: Phase, skip: Tensor | None, split: tuple[str, ...], whole: tuple[str, ...]
    ) -> None:
        for field in (*split, *whole):
            olds = [getattr(x, field) for x in (views if field in split else views[:1])]
            if olds[0] is None:
                continue
            new = getattr(phase, field)
            if skip is not None:
                new = torch.where(skip.to(new.device), self._join(olds) if field in split else olds[0], new)
            copy_(olds, self._split(new) if field in split else [new])

    def normals(
        self, seeds: Tensor, clock: Tensor, draw: int, overdamped: bool, fill: Callable[..., Tensor]
    ) -> list[Normals]:
        drawn = self.layout(seeds.ndim, overdamped).draw(seeds, clock, draw, fill)
        count = len(self.params)
        return [tuple(z.to(self.dtype) for z in (self._join(drawn[:count]), *drawn[count:]))]

    def layout(self, replica_dims: int, overdamped: bool) -> Layout:
        key = (replica_dims, overdamped)
        if key not in self._layouts:
            slots = self.space.slots[:1] if overdamped else self.space.slots[1:]
            shapes = [x.shape[replica_dims:] for x in (*self.params, *(self.states[0][slot] for slot in slots))]
            streams = [2 * stream for stream in self.streams] + [2 * self.streams[0] + 1 for _ in slots]
            self._layouts[key] = Layout(shapes, streams, self.device)
        return self._layouts[key]


def bucket_of(space: Constraint, params: list[Tensor], states: list[State], names: list[str]) -> Bucket:
    """The bucket of parameters that make up one phase."""
    return (JointBucket if space.traits.joint else Bucket)(space, params, states, names)


def units(
    space: Constraint, params: Sequence[Tensor], names: Sequence[str]
) -> Iterator[tuple[list[Tensor], list[str]]]:
    """The parameters that are landed together, with their names: each by itself, or all of a joint group."""
    if space.traits.joint and params:
        yield list(params), list(names)
    elif not space.traits.joint:
        yield from (([p], [name]) for p, name in zip(params, names, strict=True))


def gather(
    space: Constraint, params: list[Tensor], names: list[str], sizes: Tensor | None = None
) -> tuple[Constraint, Tensor]:
    """The space of a unit and the tensor it holds for: the parameter itself, or the vector of all of them.

    A DTensor is gathered: all of its ranks call this together, and :func:`scatter_` after it.

    ``sizes`` are those that the parameter's state keeps, where the space takes them from the initial weights.
    """
    if not space.traits.joint:
        return space.held_at(sizes), whole(params[0])
    space = space.joined(params, names)
    return space, joined(space, params)


def scatter_(space: Constraint, params: list[Tensor], q: Tensor) -> None:
    """Write the tensor of :func:`gather` back into the parameters, where it is a copy."""
    if not space.traits.joint:
        for p in params:
            if is_sharded(p):
                write_(p, q)
    else:
        dims = leading(space)
        parts = torch.split(q, [p.shape[dims:].numel() for p in params], -1)
        for p, part in zip(params, parts, strict=True):
            write_(p, part.reshape(p.shape))


def joined(space: Constraint, params: Sequence[Tensor]) -> Tensor:
    dims = leading(space)
    return torch.cat([whole(p).reshape(*p.shape[:dims], -1) for p in params], -1)


def leading(space: Constraint) -> int:
    """How many dimensions of a tensor come before those of its block."""
    return int(getattr(space, "leading", 0))
