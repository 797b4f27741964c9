"""Moving weights to their spaces: when a handle is built, and by :meth:`Held.project_`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._sharding.collectives import Groups, agree, gathered_objects, reduced
from .._sharding.shards import writes
from .._step.buckets import state_dtype
from .._step.integrate import Phase
from .._step.state import Landed
from ..constraints.base import Constraint, Landing
from ..errors import ConstraintError
from .claims import Claim, has_nearest
from .cuts import Cut
from .exchange import alike, exchange_of
from .shared import radii_of

Found = tuple[Landing, Tensor]
ROUNDINGS = 8  # by which weights may be outside a bound and stay where they are


def land_(claims: Sequence[Claim], groups: Groups = ()) -> list[tuple[Constraint, Landing, str]]:
    """Move all weights to their spaces, or none if one cannot be; returns what that did, on all ranks together.

    Half precision is rounded from where the weights are then in float32. ``groups`` are those of all ranks that share
    parameters; the ranks call this together.
    """
    kinds = [claim.kind if claim.parameter.numel() else "" for claim in claims]
    shared = [i for i, kind in enumerate(kinds) if kind == "summed"]
    norms = _norms([claims[i] for i in shared])
    found: dict[int, Found] = {}
    problem: Exception | None = None
    try:
        for i, claim in enumerate(claims):
            if kinds[i] == "local" and claim.tensor.numel():
                found[i] = _landed(claim, claim.here, claim.tensor)
        for i, (cut, norm) in zip(shared, norms, strict=True):
            found[i] = _land_sphere(claims[i], cut, norm)
    except (ConstraintError, RuntimeError) as error:
        problem = error
    agree(problem, (), groups, ConstraintError)
    found |= _land_wholes([i for i, kind in enumerate(kinds) if kind == "gathered"], claims, groups)
    for i, (_, there) in found.items():
        q = claims[i].tensor
        if not torch.equal(q, there.to(q.dtype)):  # equal values are no edit
            before = q.clone()
            q.copy_(there)
            claims[i].landed = Landed(before, q.clone(), writes(claims[i].parameter))
        claims[i].master = there if claims[i].is_narrow else None
    for claim in claims:
        if claim.is_narrow and not claim.tensor.numel():
            claim.master = claim.tensor.float()
    return _reported(claims, {i: landing for i, (landing, _) in found.items()}, groups)


def _landed(claim: Claim, space: Constraint, q: Tensor) -> Found:
    """What moving the weights to their space does, and where they are then; float32 for half precision."""
    there = q.to(state_dtype(q), memory_format=torch.preserve_format, copy=True)
    if not space.is_bound or not has_nearest(space):
        return space.land_(there, f"'{claim.name}'"), there
    block = space.view(there).clone()  # a bound's land_ keeps the margin that slack variables need
    if space.residual(Phase(block, radius=space.radius_of(there))) <= ROUNDINGS * torch.finfo(there.dtype).eps:
        return Landing(0, block.numel(), 0.0), there  # steps leave them so
    space.nearest_(Phase(block, radius=space.radius_of(there)))
    shift = (block - space.view(there)).abs()
    space.write_(there, block)
    return Landing(int((shift > 0).sum()), shift.numel(), float(shift.max())), there


def _norms(claims: Sequence[Claim]) -> list[tuple[Cut, Tensor]]:
    """The norms of the blocks that ranks share: one sum over ranks for all of them."""
    cuts = [claim.cut for claim in claims]
    parts = []
    for claim, cut in zip(claims, cuts, strict=True):
        assert cut is not None
        grid, exact = claim.tensor.new_zeros(cut.touched, dtype=torch.float64), claim.tensor.double()
        cut.sums(exact, exact, grid)
        parts.append((grid, cut.groups))
    return [(cut, square.sqrt()) for cut, square in zip(cuts, reduced(parts), strict=True) if cut is not None]


def _land_sphere(claim: Claim, cut: Cut, norm: Tensor) -> Found:
    bounded, q = claim.space.is_bound, claim.tensor
    if not bounded and bool((norm == 0).any()):
        raise ConstraintError(
            f"{claim.text} on '{claim.name}': a block is zero and has no nearest point on the sphere; initialise it "
            f"first"
        )
    radius = radii_of(claim, cut).view(norm.shape)
    eps = torch.finfo(q.dtype).eps
    off = norm > radius if bounded else (norm - radius).abs() > 4 * eps * radius
    scale = torch.where(off, radius / norm, 1.0)
    there = q.to(state_dtype(q), memory_format=torch.preserve_format, copy=True)
    for section in cut.sections:
        own = section.of(there)
        own.mul_(section.column(scale, own))
    distance = float(((radius - norm).abs() * off).max()) if norm.numel() else 0.0
    return Landing(int(off.sum()), norm.numel(), distance), there


def _land_wholes(numbers: Sequence[int], claims: Sequence[Claim], groups: Groups) -> dict[int, Found]:
    """Matrices that ranks share, by their owners."""
    found: dict[int, Found] = {}
    shared = [claims[i] for i in numbers]
    for several in alike(shared):
        own = [shared[n] for n in several]
        exchange = exchange_of(own)
        wholes = exchange.gather([[claim.tensor.to(state_dtype(claim.tensor)).contiguous()] for claim in own])
        problem: Exception | None = None
        landings: dict[int, Landing] = {}
        try:
            for n, (whole,) in wholes.items():
                landings[n], wholes[n][0] = _landed(own[n], own[n].space, whole)
        except (ConstraintError, RuntimeError) as error:
            problem = error
        agree(problem, (), groups, ConstraintError)
        like = own[0].tensor.to(state_dtype(own[0].tensor))
        shards, _ = exchange.scatter({n: whole for n, (whole,) in wholes.items()}, (), like)
        for n, number in enumerate(several):
            found[numbers[number]] = (landings.get(n, Landing(0, 0, 0.0)), shards[n])
    return found


def _reported(
    claims: Sequence[Claim], landings: dict[int, Landing], groups: Groups
) -> list[tuple[Constraint, Landing, str]]:
    """What happened to every parameter, added up over the ranks that have parts of it."""
    mine = {}
    for i, landing in landings.items():
        piece = claims[i].piece
        if piece is None or piece.counts_here:
            mine[i] = landing
    everywhere = gathered_objects(mine, groups)
    found = []
    for i, claim in enumerate(claims):
        parts = [own[i] for own in everywhere if i in own]
        if claim.piece is None or claim.kind == "summed":
            parts = parts[:1]
        if parts:
            total = Landing(sum(p.moved for p in parts), sum(p.blocks for p in parts), max(p.distance for p in parts))
            found.append((claim.space, total, f"'{claim.name}'"))
    return found
