"""Spheres whose blocks several ranks hold parts of: a step takes one sum over ranks, three numbers a block.

With Δ = w' − w, whatever a step does to a block is n = w' + c·w, scaled. Σw², Σw·Δ and ΣΔ² give c and ‖n‖, so that the
arithmetic of :func:`holonom._constrain.spheres.hold_` needs nothing else of other ranks. Sums are in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._sharding.collectives import Groups
from .._step.integrate import Scalar
from .._torch import version
from ..constraints import Sphere
from ..errors import ConstraintError
from .claims import Claim
from .cuts import Cut
from .shards import Shards, moved, store_
from .spheres import AT_BOUND, MAX_RATIO, ON_SPHERE, is_dropped, resolution


class SharedSpheres(Shards):
    """Spheres of one rule, dtype, device and parameter group, whose blocks are shared by the ranks of ``groups``."""

    def __init__(
        self, claims: Sequence[Claim], group: int, place: int, update: str, keeps: bool, sums_all: bool
    ) -> None:
        super().__init__(claims, group, place, update, keeps)
        self.terms = 3 if sums_all else 1  # Σw², Σw·Δ, ΣΔ²; or Σw'²
        self.cuts = [cut_of(claim) for claim in self.claims]
        self.groups: Groups = self.cuts[0].groups
        self.radius = torch.cat([radii_of(claim, cut) for claim, cut in zip(self.claims, self.cuts, strict=True)])

    def sums(self) -> Tensor:
        """This rank's part of the sums, a row for each term and a column for each block."""
        total = self.radius.new_zeros(self.terms, self.radius.numel())
        for i, (claim, cut) in enumerate(zip(self.claims, self.cuts, strict=True)):
            new = moved(claim)
            if self.terms == 1:
                cut.sums(new, new, self._part(total[0], i))
                continue
            old = self.before[i]
            change = new - old
            for row, (a, b) in zip(total, ((old, old), (old, change), (change, change)), strict=True):
                cut.sums(a, b, self._part(row, i))
        return total

    def _part(self, row: Tensor, number: int) -> Tensor:
        """The blocks of one parameter, as a grid."""
        sizes = [torch.Size(cut.touched).numel() for cut in self.cuts]
        start = sum(sizes[:number])
        return row[start : start + sizes[number]].view(self.cuts[number].touched)

    def finish(self, sums: Tensor, lr: Scalar, dropped: Scalar) -> None:
        """After the optimizer's step: move the shards as the sums over all ranks say."""
        weight, scale = coefficients(
            self.update, self.space.is_bound, sums, self.radius, lr, dropped, *_precisions(self.claims[0])
        )
        for i, (claim, cut) in enumerate(zip(self.claims, self.cuts, strict=True)):
            q = moved(claim)
            for section in cut.sections:
                own = section.of(q)
                if weight is not None:
                    own.addcmul_(section.of(self.before[i]), section.column(self._part(weight, i), own))
                own.mul_(section.column(self._part(scale, i), own))
            store_(claim, q)


def coefficients(
    update: str,
    bounded: bool,
    sums: Tensor,
    radius: Tensor,
    lr: Scalar,
    dropped: Scalar,
    eps: float,
    rounding: float,
) -> tuple[Tensor | None, Tensor]:
    """c and the scale of every block, from Σw², Σw·Δ and ΣΔ², or from Σw'² alone; c is None where nothing is added.

    The arguments are those of :func:`holonom._constrain.spheres.hold_`; ``eps`` is the rounding of its tensors.
    """
    if len(sums) == 1:
        return None, _to_radius(sums[0].sqrt(), radius, bounded, eps)
    before, along, moved = sums
    still = moved == 0
    if update == "plain" and not is_dropped(dropped):
        norm = (before + 2 * along + moved).clamp_min(0).sqrt()
        return None, _to_radius(norm, radius, bounded, eps)
    rest = (moved + 2 * dropped * along + dropped * dropped * before).clamp_min(0).sqrt()  # without the decay
    if update == "tangent":
        weight = -along / before.clamp_min(torch.finfo(before.dtype).tiny)
        if bounded:
            active = (before.sqrt() >= radius * (1 - AT_BOUND * eps)) & (along > 0)
            weight = torch.where(active, weight, 0.0)
    elif update == "angular":
        weight = (rest / (lr * radius)).clamp(max=MAX_RATIO) - (1 - dropped)
    else:
        weight = dropped * torch.ones_like(moved)
    if is_dropped(dropped):
        weight = torch.where(rest <= resolution(dropped, rounding) * radius, MAX_RATIO, weight)
    weight = torch.where(still, 0.0, weight)
    kept = 1 + weight
    norm = (kept * kept * before + 2 * kept * along + moved).clamp_min(0).sqrt()
    outside = norm > radius if bounded else norm > 0
    return weight, torch.where(outside & ~still, radius / norm, 1.0)


def _to_radius(norm: Tensor, radius: Tensor, bounded: bool, eps: float) -> Tensor:
    """What scales a block to its sphere; 1 where it is there to rounding."""
    off = norm > radius * (1 + ON_SPHERE * eps) if bounded else (norm - radius).abs() > ON_SPHERE * eps * radius
    return torch.where(off & (norm > 0), radius / norm, 1.0)


def cut_of(claim: Claim) -> Cut:
    if claim.cut is None:
        raise ConstraintError(f"'{claim.name}' is whole on every rank")
    return claim.cut


def _precisions(claim: Claim) -> tuple[float, float]:
    """The rounding of the arithmetic's tensors, and of the parameter."""
    dtypes = torch.float32 if claim.is_narrow else claim.parameter.dtype, claim.parameter.dtype
    wide, own = (float(torch.finfo(dtype).eps) for dtype in dtypes)
    return wide, own


def radii_of(claim: Claim, cut: Cut) -> Tensor:
    """The radii of the blocks that the groups touch, as a vector."""
    assert isinstance(claim.space, Sphere)
    radius, q, blocks = claim.space.radius, claim.tensor, torch.Size(cut.touched).numel()
    if not isinstance(radius, Tensor):
        return q.new_full((blocks,), float(radius), dtype=torch.float64)  # type: ignore[arg-type]
    known = claim.radius
    if known is None or known[0] is not radius or known[1] != version(radius) or known[2].device != q.device:
        copied = radius.to(q.device, torch.float64)  # not at every step: a copy from the host waits for the device
        claim.radius = known = radius, version(radius), copied
    values = known[2]
    if values.ndim:
        return claim.space.by_dimension(values, cut.grid)[cut.span].reshape(-1)
    return values.expand(blocks)
