"""Buckets: the parameters of one rule and space that a step's hooks work on together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._sharding.shards import is_sharded
from .._step.buckets import MAX_STACKED
from .._step.integrate import Scalar
from .._torch import copy_, version
from ..constraints import Circle, Sphere
from ..constraints.base import widened
from ..errors import ConstraintError, ProjectionError
from .bounds import bound_
from .claims import Claim
from .shards import adopted, moved, store_
from .spheres import Workspace, hold_, is_dropped
from .verbs import EDITED, hold, nearest, without_root


class Bucket:
    """Claims of one rule, space, dtype, device and parameter group (and of one shape, where they are stacked).

    ``before`` are the blocks as they were before the last step, in the precision of the arithmetic, where ``keeps``.
    """

    def __init__(self, claims: Sequence[Claim], group: int, place: int, update: str, keeps: bool) -> None:
        self.claims, self.group, self.place, self.update = claims, group, place, update
        self.spaces = [claim.here for claim in claims]
        self.space = self.spaces[0]
        self._spread = any(is_sharded(claim.parameter) for claim in claims)
        self.tensors: list[Tensor] = [c.tensor if is_sharded(c.parameter) else c.parameter for c in claims]
        self.searches = claims[0].searches
        self.keeps = keeps or self.searches
        self.before: list[Tensor] = []
        self._views: list[Tensor] = []
        self._memory: list[Any] = []
        radii = [getattr(space, "radius", None) for space in self.spaces]
        self._own_radii = [r for r in radii if isinstance(r, Tensor)]
        self._of_radii: list[int] = []  # how often each was written
        self._versions: list[int] = []
        self._work: Workspace | None = None
        self._table: Any = None
        self._radius: Scalar | None = None
        self._each_radius: list[Scalar | None] = []
        self.lost: Tensor | None = None  # how many projections had no root, on the device

    @property
    def narrow(self) -> bool:
        """Half precision: steps move float32 weights, which the parameters are rounded from."""
        return self.tensors[0].dtype.itemsize < 4

    @property
    def _rounding(self) -> float:
        return float(torch.finfo(self.tensors[0].dtype).eps)

    @property
    def _projects(self) -> bool:
        """Whether steps are projected at weights that have to be on the manifold; those of spheres may be off it."""
        return self.update == "tangent" and not isinstance(self.space, Sphere)

    # ── blocks ───────────────────────────────────────────────────────────────────────────────────

    def refresh(self) -> None:
        """Make the views again if the memory of parameters, or a radius that is a tensor, has changed."""
        if self._spread:  # local tensors may be other objects
            self.tensors = [claim.tensor for claim in self.claims]
        memory = [(p.data_ptr(), p.stride(), p.dtype) for p in self.tensors]
        radii = [version(r) for r in self._own_radii]
        if (memory, radii) == (self._memory, self._of_radii) and all(found[0] for found in memory):
            return
        self._memory, self._of_radii = memory, radii
        pairs = [(space, p.detach()) for space, p in zip(self.spaces, self.tensors, strict=True)]
        self._copied = self.narrow or not all(space.is_view(p) for space, p in pairs)
        self._views = [] if self._copied else [space.view(p) for space, p in pairs]
        self._work = self._table = None
        self._stacks = len(self.tensors) > 1 and self.space.traits.stacked
        if self.tensors[0].device.type == "cpu" and self.tensors[0].numel() >= MAX_STACKED:
            self._stacks = False
        self._radius = self._radii()

    def _radii(self) -> Scalar | None:
        """The radii of all blocks: a number, a vector for spheres, or a stack."""
        qs = [widened(p.detach()) for p in self.tensors]
        found = [space.radius_of(q) for space, q in zip(self.spaces, qs, strict=True)]
        self._each_radius = found  # on the device: steps would copy those of a host
        if not any(isinstance(r, Tensor) for r in found):
            return found[0]
        if isinstance(self.space, Sphere):
            shapes = [space.view(q).shape[:-1] for space, q in zip(self.spaces, qs, strict=True)]
            whole = [torch.as_tensor(r).to(q) for r, q in zip(found, qs, strict=True)]
            whole = [r.squeeze(-1) if r.ndim > len(shape) else r for r, shape in zip(whole, shapes, strict=True)]
            return torch.cat([r.broadcast_to(shape).reshape(-1) for r, shape in zip(whole, shapes, strict=True)])
        return torch.stack([torch.as_tensor(r).to(q) for r, q in zip(found, qs, strict=True)]) if self._stacks else None

    def blocks(self) -> list[Tensor]:
        """The blocks of every parameter: views of its memory, or copies where there are none."""
        self.refresh()
        return self._views or [s.view(widened(p.detach())) for s, p in zip(self.spaces, self.tensors, strict=True)]

    # ── the step ─────────────────────────────────────────────────────────────────────────────────

    def start(self, edited: bool | None = None) -> None:
        """Before the optimizer's step: keep the weights as they are. ``edited``: others wrote them; None: find out."""
        self.refresh()
        if edited is None:
            edited = self._versions != self._written()
        masters = [adopted(claim) for claim in self.claims] if self.narrow else []
        if not self.keeps:
            return
        blocks = self.blocks()
        if masters:
            blocks = [space.view(q) for space, q in zip(self.spaces, masters, strict=True)]
        kept, self.before = self.before, []  # restore() has nothing to write until they are those of this step
        if list(map(_kind, kept)) != list(map(_kind, blocks)):
            kept = [torch.empty_like(x) for x in blocks]
        copy_(kept, blocks)
        self.before = kept
        if edited and self._projects:
            self._land(self.before)
            for space, q, block in zip(self.spaces, masters, self.before, strict=False):
                space.write_(q, block)

    def _written(self) -> list[int]:
        """How often each parameter was written; what is written to a DTensor its local tensor does not count."""
        found = [version(p) for p in self.tensors]
        return found + [version(claim.parameter) for claim in self.claims] if self._spread else found

    def _land(self, blocks: Iterable[Tensor]) -> None:
        """Weights that were written from outside need not be on the manifold that a step is projected on."""
        name = ""
        try:
            for claim, x, radius in zip(self.claims, blocks, self._each_radius, strict=True):
                name = claim.name
                x.copy_(nearest(self.space, x, radius, EDITED))
        except (ConstraintError, ProjectionError) as error:
            raise type(error)(f"'{name}': {error}") from error

    def finish(self, lr: Scalar, dropped: Scalar) -> None:
        """After the optimizer's step: move the weights to their space."""
        self.refresh()
        wholes = self._moved()
        try:
            if self.searches:
                for space, claim, q, before in zip(self.spaces, self.claims, wholes, self.before, strict=True):
                    if is_dropped(dropped):
                        space.write_(q, space.view(q) + dropped * before)
                    space.land_(q, f"'{claim.name}'")
            else:
                self._finish(wholes, lr, dropped)
        except (ConstraintError, ProjectionError) as error:
            self.restore()
            names = ", ".join(f"'{claim.name}'" for claim in self.claims)
            now = "as they were before the step" if self.before else "where the step left them, off their space"
            raise type(error)(f"{names}: {error}. These weights are {now}") from error
        except Exception:  # of a user's function
            self.restore()
            raise
        if self.narrow:
            for claim, q in zip(self.claims, wholes, strict=True):
                store_(claim, q)
        self._versions = self._written()

    def _moved(self) -> list[Tensor]:
        """The parameters after the optimizer's step, where there are no views of them; float32 for half precision."""
        return [] if self._views and not self.searches else [moved(claim) for claim in self.claims]

    def _finish(self, wholes: list[Tensor], lr: Scalar, dropped: Scalar) -> None:
        blocks = self._views or [space.view(q) for space, q in zip(self.spaces, wholes, strict=True)]
        if isinstance(self.space, Sphere):
            if self._work is None:
                self._work = Workspace(blocks)
            assert self._radius is not None
            hold_(
                self.update, self.space.is_bound, blocks, self.before, self._radius, lr, dropped, self._work,
                self._rounding,
            )  # fmt: skip
        elif self._stacks:
            old = torch.stack(self.before) if self.before else None
            copy_(blocks, list(self._held(torch.stack(blocks), old, self._radius, dropped).unbind()))
        elif type(self.space) is Circle and self.update == "plain" and not is_dropped(dropped):
            self._table = bound_(self.space, blocks, self._each_radius, self._table)
        else:
            olds: Sequence[Tensor | None] = self.before or [None] * len(blocks)
            for block, before, radius in zip(blocks, olds, self._each_radius, strict=True):
                block.copy_(self._held(block, before, radius, dropped))
        for space, q, block in zip(self.spaces, wholes, blocks, strict=bool(wholes)):
            if not space.is_view(q):
                space.write_(q, block)

    def _held(self, new: Tensor, old: Tensor | None, radius: Scalar | None, dropped: Scalar) -> Tensor:
        """Matrices that could not be projected stay where they were, and are counted on the device."""
        found = hold(self.space, self.update, new, old, radius, dropped, self._rounding)
        if old is None or self.update == "plain" or not self.space.traits.can_fail:
            return found
        lost = without_root(new, found)
        if self.lost is None:
            self.lost = torch.zeros((), dtype=torch.int64, device=lost.device)
        self.lost.add_(lost.sum())
        return torch.where(lost, old, found)

    def restore(self) -> None:
        """Write the weights from before the step, where they are kept."""
        for space, q, block in zip(self.spaces, self.tensors, self.before, strict=False):
            space.write_(q.detach(), block.to(q.dtype))


def _kind(x: Tensor) -> tuple[torch.Size, torch.device, torch.dtype]:
    return x.shape, x.device, x.dtype


Placed = tuple[Claim, int, int]
"""A claim, the number of its parameter group, and its place in that."""


def bucketed(placed: Iterable[Placed], update: str, keeps: bool) -> list[Bucket]:
    """The buckets of claims that need no other rank; ``keeps``: weights are kept from before a step."""
    members: dict[tuple[Any, ...], list[Placed]] = {}
    for claim, group, place in placed:
        q = claim.tensor
        if q.numel():
            shape = claim.here.view(q).shape if claim.space.traits.stacked else None
            key = (claim.rule, group, claim.text, q.dtype, q.device, shape)
            members.setdefault(key, []).append((claim, group, place))
    return [Bucket([claim for claim, *_ in own], *own[0][1:], update, keeps) for own in members.values()]
