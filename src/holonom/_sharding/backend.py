"""The backend of groups whose parameters are spread over ranks: other backends on what is here, sums over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._step.buckets import Bucket
from .._step.integrate import Eager, Normals, Scalar
from .._step.letters import Ready
from ..constraints import Constraint
from ..errors import ProjectionError
from .collectives import Groups, reduced
from .spheres import SummedBucket

NO_ROOT = (
    "another rank found no root for a matrix of this group, and its message says which; weights and state of the group "
    "are those of the last good step on all ranks. Lower lr"
)


@dataclass
class Spread:
    """What moves of a group on all ranks together: the same numbers on every rank, whatever lies there.

    Args:
        space: of the group, for whole parameters.
        device: where the group's parameters are.
        degrees_of_freedom: of all parameters that move.
        elements: of all parameters of the group.
        groups: the process groups that sums over the parameters go over, one entry for every kind of mesh.
    """

    space: Constraint
    device: torch.device
    degrees_of_freedom: int = 0
    elements: int = 0
    groups: list[Groups] = field(default_factory=list)

    def backend(self, group: dict[str, Any], buckets: list[Bucket], records: bool) -> Several:
        return Several(self, group, buckets, records)

    def largest(self, value: float) -> float:
        """The largest of a number of every rank; NaN counts as infinity."""
        here = torch.tensor(math.inf if math.isnan(value) else value, dtype=torch.float64, device=self.device)
        return float(torch.stack([here, *reduced([(here, groups) for groups in self.groups], "max")]).max())

    def kinetic_energy(self, buckets: Sequence[Bucket]) -> float:
        """Σ p² of tangent momenta, of all ranks."""
        found: list[tuple[Groups, bool, Tensor]] = []
        for bucket in buckets:
            phases = bucket.phases()
            if isinstance(bucket, SummedBucket):
                found += [(bucket.groups, *energy) for energy in bucket.energies(phases)]
            else:
                momenta = [m for x in phases for m in bucket.space.tangent(x)]
                found.append((bucket.groups, bucket.counts, torch.stack([m.square().sum() for m in momenta]).sum()))
        return float(self.total(found, torch.zeros((), dtype=torch.float64, device=self.device)))

    def total(self, parts: Sequence[tuple[Groups, bool, Tensor]], like: Tensor) -> Tensor:
        """The sum over all ranks of parts that lie here; ranks without any take part with zeros."""
        everywhere = torch.zeros_like(like)
        sums = {tuple(map(id, groups)): torch.zeros_like(like) for groups in self.groups}
        for groups, counts, value in parts:
            key = tuple(map(id, groups))
            if not groups:
                everywhere = everywhere + value.to(like)
            elif counts:
                sums[key] = sums[key] + value.to(like)
        found = reduced([(sums[tuple(map(id, groups))], groups) for groups in self.groups])
        return torch.stack([everywhere, *found]).sum(0)


class Several(Eager):
    """Runs every kind of bucket by the backend for it."""

    def __init__(self, spread: Spread, group: dict[str, Any], buckets: list[Bucket], records: bool) -> None:
        from .._step.run import choose_backend

        self.spread, self.buckets = spread, buckets
        self.failed: Exception | None = None
        self.without_root: set[int] = set()  # parts
        kinds: dict[Any, list[int]] = {}
        for i, bucket in enumerate(buckets):
            summed = isinstance(bucket, SummedBucket)
            kinds.setdefault((summed, bucket.counts, tuple(map(id, bucket.groups)), summed and i), []).append(i)
        self.places = list(kinds.values())
        self.parts: list[Eager] = [
            choose_backend(group, [buckets[i] for i in own], records, spread.elements) for own in self.places
        ]

    def begin(
        self,
        buckets: Sequence[Bucket],
        gradients: Sequence[Sequence[Tensor]] | None,
        sign: float,
        decay: Scalar,
        skip: Tensor | None,
        adopt: bool = True,
    ) -> None:
        phases: list[Any] = [None] * len(buckets)
        forces: list[Any] = [None] * len(buckets)
        for part, own in zip(self.parts, self.places, strict=True):
            found = None if gradients is None else [gradients[i] for i in own]
            part.begin([buckets[i] for i in own], found, sign, decay, skip, adopt)
            for i, *both in zip(own, getattr(part, "phases", own), getattr(part, "forces", own), strict=True):
                phases[i], forces[i] = both
        self.phases, self.forces = phases, forces

    def run(
        self, ops: Sequence[Ready], normals: Callable[[Bucket, int], Sequence[Normals]], polish: bool | None
    ) -> None:
        for i, part in enumerate(self.parts):
            if i not in self.without_root:
                error = run_part(part, ops, normals, polish)
                if error is not None:  # other ranks go on; end() tells them
                    self.failed = error
                    self.without_root.add(i)

    def kinetic_energy(self, replica_dims: int) -> Tensor:
        found: list[tuple[Groups, bool, Tensor]] = []
        for i, (part, own) in enumerate(zip(self.parts, self.places, strict=True)):
            bucket = self.buckets[own[0]]
            if i in self.without_root:
                continue
            if isinstance(bucket, SummedBucket):
                found += [(bucket.groups, *energy) for energy in bucket.energies(part.phases[0])]
            else:
                found.append((bucket.groups, bucket.counts, part.kinetic_energy(0)))
        return self.spread.total(found, torch.zeros((), dtype=torch.float64, device=self.spread.device))

    def total(self, parts: Sequence[tuple[Bucket, Tensor]]) -> Tensor:
        like = torch.zeros(2, dtype=torch.float64, device=self.spread.device)
        return self.spread.total([(bucket.groups, bucket.counts, value) for bucket, value in parts], like)

    def positions(self) -> list[Tensor]:
        return [q for part in self.parts for q in part.positions()]

    def lost(self, skip: Tensor) -> Tensor:
        here = [q.isfinite().all() for q in self.positions()]
        bad = (~torch.stack(here).all() if here else torch.zeros_like(skip)).to(torch.float64)
        found = reduced([(bad, groups) for groups in self.spread.groups], "max")
        return torch.stack([bad, *found]).any()  # a mesh of one rank has no groups

    def end(self, skip: Tensor | None) -> None:
        """Write what has moved. On a CPU a step without a root, on any rank, raises on all before one writes."""
        if self.spread.space.traits.can_fail and self.spread.device.type == "cpu":
            failed = self.spread.largest(float(self.failed is not None))
            if self.failed is not None:
                raise self.failed
            if failed:
                raise ProjectionError(NO_ROOT)
        for part in self.parts:
            part.end(skip)


class Told(Eager):
    """The backend of a group that no rank shares, beside others that they share: a root that is missing is told."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.failed: Exception | None = None

    def run(
        self, ops: Sequence[Ready], normals: Callable[[Bucket, int], Sequence[Normals]], polish: bool | None
    ) -> None:
        try:
            if self.failed is None:
                super().run(ops, normals, polish)
        except Exception as error:  # also of a user's function; other ranks go on, and end() tells them
            self.failed = error

    def end(self, skip: Tensor | None) -> None:
        """Write what has moved, or raise on all ranks before one writes."""
        (failed,) = reduced([(torch.tensor(float(self.failed is not None), dtype=torch.float64), self.groups)])
        if self.failed is not None:
            raise self.failed
        if failed:
            raise ProjectionError(NO_ROOT)
        super().end(skip)


def run_part(
    part: Eager, ops: Sequence[Ready], normals: Callable[[Bucket, int], Sequence[Normals]], polish: bool | None
) -> Exception | None:
    """One stage; what it raises, such as a projection without a root."""
    try:
        part.run(ops, normals, polish)
    except Exception as error:  # also of a user's function
        return error
    return None
