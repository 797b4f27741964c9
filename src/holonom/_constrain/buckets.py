"""Buckets: the parameters of one rule and space that a step's hooks work on together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._step.buckets import MAX_STACKED
from .._step.integrate import Scalar
from .._torch import copy_, version
from ..constraints import Sphere
from ..constraints.base import widened
from ..errors import ConstraintError, ProjectionError
from .claims import Claim, has_nearest
from .spheres import Workspace, hold_
from .verbs import EDITED, hold, nearest, without_root


class Bucket:
    """Claims of one rule, space, dtype, device and parameter group (and of one shape, where they are stacked).

    ``before`` are the blocks as they were before the last step, in the precision of the arithmetic, where ``keeps``.
    """

    def __init__(self, claims: Sequence[Claim], group: int, place: int, update: str, keeps: bool) -> None:
        self.claims, self.group, self.place, self.update = claims, group, place, update
        self.space = claims[0].space
        self.parameters = [claim.parameter for claim in claims]
        self.searches = not has_nearest(self.space)
        self.keeps = keeps or self.searches
        self.before: list[Tensor] = []
        self._views: list[Tensor] = []
        self._memory: list[Any] = []
        self._versions: list[int] = []
        self._work: Workspace | None = None
        self._radius: Scalar | None = None
        self.lost: Tensor | None = None  # how many projections had no root, on the device

    @property
    def narrow(self) -> bool:
        """Half precision: steps move float32 weights, which the parameters are rounded from."""
        return self.parameters[0].dtype.itemsize < 4

    @property
    def _projects(self) -> bool:
        """Whether steps are projected at weights that have to be on the manifold; those of spheres may be off it."""
        return self.update == "tangent" and not isinstance(self.space, Sphere)

    # ── blocks ───────────────────────────────────────────────────────────────────────────────────

    def refresh(self) -> None:
        """Make the views again if the memory of parameters has changed."""
        memory = [(p.data_ptr(), p.stride(), p.dtype) for p in self.parameters]
        if memory == self._memory and all(found[0] for found in memory):
            return
        self._memory = memory
        self._copied = self.narrow or not all(self.space.is_view(p) for p in self.parameters)
        self._views = [] if self._copied else [self.space.view(p.detach()) for p in self.parameters]
        self._work = None
        self._stacks = len(self.parameters) > 1 and self.space.traits.stacked
        if self.parameters[0].device.type == "cpu" and self.parameters[0].numel() >= MAX_STACKED:
            self._stacks = False
        self._radius = self._radii()

    def _radii(self) -> Scalar | None:
        """The radii of all blocks: a number, a vector for spheres, or a stack."""
        qs = [widened(p.detach()) for p in self.parameters]
        found = [claim.space.radius_of(q) for claim, q in zip(self.claims, qs, strict=True)]
        if not any(isinstance(r, Tensor) for r in found):
            return found[0]
        if isinstance(self.space, Sphere):
            shapes = [claim.space.view(q).shape[:-1] for claim, q in zip(self.claims, qs, strict=True)]
            whole = [torch.as_tensor(r).to(q) for r, q in zip(found, qs, strict=True)]
            whole = [r.squeeze(-1) if r.ndim > len(shape) else r for r, shape in zip(whole, shapes, strict=True)]
            return torch.cat([r.broadcast_to(shape).reshape(-1) for r, shape in zip(whole, shapes, strict=True)])
        return torch.stack([torch.as_tensor(r).to(q) for r, q in zip(found, qs, strict=True)]) if self._stacks else None

    def blocks(self) -> list[Tensor]:
        """The blocks of every parameter: views of its memory, or copies where there are none."""
        self.refresh()
        return self._views or [claim.space.view(widened(claim.parameter.detach())) for claim in self.claims]

    # ── the step ─────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Before the optimizer's step: keep the weights as they are."""
        edited = self._versions != [version(p) for p in self.parameters]
        masters = [self._adopted(claim) for claim in self.claims] if self.narrow else []
        if not self.keeps:
            return
        blocks = self.blocks()
        if masters:
            blocks = [claim.space.view(q) for claim, q in zip(self.claims, masters, strict=True)]
        if list(map(_kind, self.before)) != list(map(_kind, blocks)):
            self.before = [torch.empty_like(x) for x in blocks]
        copy_(self.before, blocks)
        if edited and self._projects:
            self._land(self.before)
            for claim, q, block in zip(self.claims, masters, self.before, strict=False):
                claim.space.write_(q, block)

    def _adopted(self, claim: Claim) -> Tensor:
        """The float32 weights of half-precision ones; what was written from outside replaces them."""
        seen = claim.parameter.detach()
        if claim.master is None:
            claim.master = seen.float()
        else:  # in place, as a captured graph needs it
            claim.master.copy_(torch.where(claim.master.to(seen.dtype) == seen, claim.master, seen.float()))
        return claim.master

    def _land(self, blocks: Iterable[Tensor]) -> None:
        """Weights that were written from outside need not be on the manifold that a step is projected on."""
        for x, radius in zip(blocks, self._each_radius(), strict=True):
            x.copy_(nearest(self.space, x, radius, EDITED))

    def finish(self, lr: Scalar, dropped: Scalar) -> None:
        """After the optimizer's step: move the weights to their space."""
        self.refresh()
        wholes = self._moved()
        try:
            if self.searches:
                for claim, q in zip(self.claims, wholes, strict=True):
                    claim.space.land_(q, f"'{claim.name}'")
            else:
                self._finish(wholes, lr, dropped)
        except (ConstraintError, ProjectionError) as error:
            self._restore()
            names = ", ".join(f"'{claim.name}'" for claim in self.claims)
            raise type(error)(f"{names}: {error}. These weights are as they were before the step") from error
        if self.narrow:
            for claim, q in zip(self.claims, wholes, strict=True):
                assert claim.master is not None
                claim.master.copy_(q)
                claim.parameter.detach().copy_(q)
        self._versions = [version(p) for p in self.parameters]

    def _moved(self) -> list[Tensor]:
        """The parameters after the optimizer's step, where there are no views of them; float32 for half precision."""
        if not self.narrow:
            return [] if self._views and not self.searches else [p.detach() for p in self.parameters]
        moved = []
        for claim in self.claims:
            assert claim.master is not None
            seen = claim.master.to(claim.parameter.dtype)  # as the optimizer found it
            moved.append(claim.parameter.detach().float().sub_(seen).add_(claim.master))
        return moved

    def _finish(self, wholes: list[Tensor], lr: Scalar, dropped: Scalar) -> None:
        blocks = self._views or [claim.space.view(q) for claim, q in zip(self.claims, wholes, strict=True)]
        if isinstance(self.space, Sphere):
            if self._work is None:
                self._work = Workspace(blocks)
            assert self._radius is not None
            hold_(self.update, self.space.is_bound, blocks, self.before, self._radius, lr, dropped, self._work)
        elif self._stacks:
            old = torch.stack(self.before) if self.before else None
            copy_(blocks, list(self._held(torch.stack(blocks), old, self._radius, dropped).unbind()))
        else:
            olds: Sequence[Tensor | None] = self.before or [None] * len(blocks)
            for block, before, radius in zip(blocks, olds, self._each_radius(), strict=True):
                block.copy_(self._held(block, before, radius, dropped))
        for claim, q, block in zip(self.claims, wholes, blocks, strict=bool(wholes)):
            if not claim.space.is_view(q):
                claim.space.write_(q, block)

    def _held(self, new: Tensor, old: Tensor | None, radius: Scalar | None, dropped: Scalar) -> Tensor:
        """Matrices that could not be projected stay where they were, and are counted on the device."""
        found = hold(self.space, self.update, new, old, radius, dropped)
        if old is None or self.update == "plain" or not self.space.traits.can_fail:
            return found
        lost = without_root(new, found)
        if self.lost is None:
            self.lost = torch.zeros((), dtype=torch.int64, device=lost.device)
        self.lost.add_(lost.sum())
        return torch.where(lost, old, found)

    def _each_radius(self) -> list[Scalar | None]:
        return [claim.space.radius_of(widened(claim.parameter.detach())) for claim in self.claims]

    def _restore(self) -> None:
        for claim, block in zip(self.claims, self.before, strict=False):
            claim.space.write_(claim.parameter.detach(), block.to(claim.parameter.dtype))


def _kind(x: Tensor) -> tuple[torch.Size, torch.device, torch.dtype]:
    return x.shape, x.device, x.dtype


def make_buckets(claims: Iterable[Claim], optimizer: Optimizer, update: str, keeps: Sequence[bool]) -> list[Bucket]:
    """The buckets of all claims; ``keeps`` says of every group whether weights are kept from before a step."""
    where = {
        id(p): (number, place)
        for number, group in enumerate(optimizer.param_groups)
        for place, p in enumerate(group["params"])
    }
    members: dict[tuple[Any, ...], list[Claim]] = {}
    for claim in claims:
        p = claim.parameter
        if id(p) not in where:
            raise RuntimeError(
                f"the optimizer no longer owns '{claim.name}', which is held on {claim.text}: call remove() and "
                f"constrain it with rules for what it owns"
            )
        if p.numel():
            shape = claim.space.view(p.detach()).shape if claim.space.traits.stacked else None
            key = (claim.rule, where[id(p)][0], claim.text, p.dtype, p.device, shape)
            members.setdefault(key, []).append(claim)
    found = []
    for own in members.values():
        group, place = where[id(own[0].parameter)]
        found.append(Bucket(own, group, place, update, keeps[group]))
    return found
