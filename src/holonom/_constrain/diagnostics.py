"""How far held weights are off their spaces, and by how much a step turned them; the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._sharding.collectives import reduced
from .._step.integrate import Phase
from ..constraints import Sphere
from ..constraints.base import widened
from .claims import Claim
from .cuts import Cut
from .exchange import alike, exchange_of
from .plan import Plan
from .shared import radii_of


class Turned(NamedTuple):
    """By how much blocks turned, in radians."""

    mean: float
    largest: float


def residuals(claims: Sequence[Claim], labels: Sequence[str]) -> dict[str, float]:
    """The largest violation under every rule. NaN counts as infinity where ranks are compared."""
    found = dict.fromkeys(labels, 0.0)
    held = [claim for claim in claims if claim.parameter.numel()]
    spread: dict[int, Tensor] = {}
    for claim in held:
        if claim.piece is None:
            found[labels[claim.rule]] = _largest(found[labels[claim.rule]], float(claim.space.residual(claim.phase())))
        elif claim.kind == "local" and claim.tensor.numel():
            spread[id(claim)] = claim.space.residual(claim.phase())
    spread |= _of_sums([claim for claim in held if claim.kind == "summed"])
    spread |= _of_wholes([claim for claim in held if claim.kind == "gathered"])
    parts = []
    for claim in held:
        if (piece := claim.piece) is not None:
            value = spread.get(id(claim), claim.tensor.new_zeros(())).double()
            parts.append((claim, (torch.nan_to_num(value, nan=torch.inf, posinf=torch.inf), piece.holders)))
    largest = reduced([part for _, part in parts], "max")
    for (claim, _), value in zip(parts, largest, strict=True):
        found[labels[claim.rule]] = _largest(found[labels[claim.rule]], float(value))
    return found


def _of_sums(claims: Sequence[Claim]) -> dict[int, Tensor]:
    cuts = [cut for claim in claims if (cut := claim.cut) is not None]
    parts = []
    for claim, cut in zip(claims, cuts, strict=True):
        q = widened(claim.tensor)
        grid = q.new_zeros(cut.touched, dtype=torch.float64)
        cut.sums(q, q, grid)
        parts.append((grid, cut.groups))
    found = {}
    for claim, cut, square in zip(claims, cuts, reduced(parts), strict=True):
        error = square.reshape(-1) / radii_of(claim, cut).square() - 1
        error = error.clamp_min(0) if claim.space.is_bound else error.abs()
        found[id(claim)] = error.max() if error.numel() else error.sum()
    return found


def _of_wholes(claims: Sequence[Claim]) -> dict[int, Tensor]:
    """Those of the parameters that this rank owns."""
    found = {}
    for several in alike(claims):
        own = [claims[i] for i in several]
        for n, (q,) in exchange_of(own).gather([[widened(claim.tensor).contiguous()] for claim in own]).items():
            space = own[n].space
            found[id(own[n])] = space.residual(Phase(space.view(q), radius=space.radius_of(q)))
    return found


def angles(plan: Plan, labels: Sequence[str]) -> dict[str, Turned]:
    """By how much blocks turned from before the last step."""
    everywhere: list[tuple[Claim, Tensor]] = []  # all angles of a parameter, known on every rank
    here: dict[int, Tensor] = {}  # those of the blocks of this rank
    shared: list[tuple[Claim, Tensor, Tensor]] = []
    for bucket in plan.buckets:
        dims = block_dims(bucket.claims[0])
        for claim, old, new in zip(bucket.claims, bucket.before, bucket.blocks(), strict=True):
            if claim.piece is None:
                everywhere.append((claim, _angles(old, new, dims or new.ndim)))
            elif dims:
                here[id(claim)] = _angles(old, new, dims)
            else:
                shared.append((claim, old, new))
    for own in (*plan.spheres, *(shards for several in plan.owned for shards in several.shards)):
        now = [widened(claim.tensor) for claim in own.claims]
        shared += list(zip(own.claims, own.before, now, strict=True))
    everywhere += _of_shared(shared, plan.claims)
    rows = [(claim.rule, _summary(found)) for claim, found in everywhere]
    return _turned([*rows, *_of_local(here, plan.claims)], labels)


def _summary(found: Tensor) -> Tensor:
    """Their sum, how many there are, and the largest."""
    most = found.max() if found.numel() else found.new_zeros(())
    return torch.stack([found.sum(), found.new_tensor(float(found.numel())), most])


def _of_local(here: dict[int, Tensor], claims: Sequence[Claim]) -> list[tuple[int, Tensor]]:
    """Rules and summaries of parameters whose blocks no shard cuts, over all ranks."""
    own = [(c, piece) for c in claims if (piece := c.piece) is not None and c.kind == "local" and block_dims(c)]
    each = [_summary(here.get(id(c), c.tensor.new_zeros(0, dtype=torch.float64))) for c, _ in own]
    totals = reduced([(x[:2], piece.holders) for x, (_, piece) in zip(each, own, strict=True)])
    largest = reduced([(x[2:], piece.holders) for x, (_, piece) in zip(each, own, strict=True)], "max")
    return [(c.rule, torch.cat([a, b])) for (c, _), a, b in zip(own, totals, largest, strict=True)]


def _turned(rows: Sequence[tuple[int, Tensor]], labels: Sequence[str]) -> dict[str, Turned]:
    found = {}
    for number, label in enumerate(labels):
        own = [x.tolist() for rule, x in rows if rule == number]
        if count := sum(n for _, n, _ in own):
            found[label] = Turned(sum(total for total, *_ in own) / count, max(most for *_, most in own))
    return found


def _of_shared(given: Sequence[tuple[Claim, Tensor, Tensor]], claims: Sequence[Claim]) -> list[tuple[Claim, Tensor]]:
    """The angles of blocks that ranks share, from sums over all ranks that hold a part of them."""
    weights = {id(claim): (old, new) for claim, old, new in given}
    parts = []
    for claim in claims:
        piece = claim.piece
        if piece is None or (claim.kind == "local" and block_dims(claim)):
            continue
        reach = claim.space.reach(piece.shape) if block_dims(claim) else None
        cut = Cut(piece, reach or tuple(piece.shape))
        grid = claim.tensor.new_zeros((3, *cut.grid), dtype=torch.float64)
        if id(claim) in weights:
            old, new = (x.double() for x in weights[id(claim)])
            for row, (a, b) in zip(grid, ((old, old), (old, new - old), (new - old, new - old)), strict=True):
                cut.sums(a, b, row)
        parts.append((claim, (grid, piece.holders)))
    sums = reduced([part for _, part in parts])
    return [(claim, _angles_of(grid.reshape(3, -1))) for (claim, _), grid in zip(parts, sums, strict=True)]


def _angles_of(sums: Tensor) -> Tensor:
    """2·atan2(‖u − v‖, ‖u + v‖) of unit vectors, from Σw², Σw·Δ and ΣΔ²."""
    before, along, moved = sums
    old, new = before.sqrt(), (before + 2 * along + moved).clamp_min(0).sqrt()
    longer = (2 * along + moved) / (old + new)
    apart = ((moved - longer.square()) / (old * new)).clamp(0, 4)
    return torch.nan_to_num(2 * torch.atan2(apart.sqrt(), (4 - apart).sqrt()), nan=0.0)


def block_dims(claim: Claim) -> int:
    """How many of the last dimensions are a block; 0 for the whole tensor."""
    return 1 if isinstance(claim.space, Sphere) else 2 if claim.space.traits.stacked else 0


def _largest(a: float, b: float) -> float:
    return b if b != b or b > a else a


def _angles(old: Tensor, new: Tensor, dims: int) -> Tensor:
    """2·atan2(‖u − v‖, ‖u + v‖) of unit vectors, which has all digits of small angles."""
    u, v = (x.flatten(-dims).double() for x in (old, new))
    u, v = (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (u, v))
    apart, along = (torch.linalg.vector_norm(x, dim=-1) for x in (u - v, u + v))
    return torch.nan_to_num(2 * torch.atan2(apart, along), nan=0.0).reshape(-1)
