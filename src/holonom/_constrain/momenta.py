"""An optimizer's momenta along the spaces that its weights are held on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._lines import users_line
from .._sharding.collectives import reduced
from .._sharding.shards import is_sharded, local
from .._step.integrate import Phase
from .._torch import full_precision
from ..constraints import Constraint
from ..constraints.base import widened
from ..errors import ConstraintError
from .claims import Claim
from .exchange import alike, exchange_of
from .shared import radii_of
from .spheres import AT_BOUND

NAMES = ("exp_avg", "momentum_buffer")
Pair = tuple[Claim, Tensor]


def check_momenta(claims: Sequence[Claim]) -> None:
    for claim in claims:
        if type(claim.space).project_step_ is Constraint.project_step_:
            raise ConstraintError(f"{claim.space!r} on '{claim.name}' has no tangent space: use momentum='keep'")


@torch.no_grad()
@full_precision()
def project_momenta_(optimizer: Optimizer, claims: Sequence[Claim]) -> int:
    """Remove from momenta what points off the manifold; of a bound, where a step along −m would leave it.

    Returns how many there were.
    """
    pairs: dict[str, list[Pair]] = {"local": [], "summed": [], "gathered": []}
    for claim in claims:
        state = optimizer.state.get(claim.parameter) or {}
        for momentum in (state[name] for name in NAMES if state.get(name) is not None):
            pairs[claim.kind].append((claim, local(momentum) if is_sharded(momentum) else momentum))
    for claim, momentum in pairs["local"]:
        if momentum.numel():
            _project(claim.here, claim.phase(), momentum)
    _project_sums(pairs["summed"])
    _project_wholes(pairs["gathered"])
    return sum(map(len, pairs.values()))


def _project(space: Constraint, x: Phase, momentum: Tensor) -> None:
    step = space.view(widened(momentum).neg()).clone()  # optimizers move along −m
    space.project_step_(x, step)
    space.write_(momentum, step.neg_().to(momentum.dtype))


def _project_sums(pairs: Sequence[Pair]) -> None:
    """Of spheres whose blocks ranks share: m − w(w·m)/r², by one sum over ranks."""
    found = [(claim, momentum, cut) for claim, momentum in pairs if (cut := claim.cut) is not None]
    parts = []
    for claim, momentum, cut in found:
        q, m = widened(claim.tensor), widened(momentum)
        sums = q.new_zeros((2, *cut.touched), dtype=torch.float64)
        cut.sums(q, m, sums[0])
        cut.sums(q, q, sums[1])
        parts.append((sums, cut.groups))
    for (claim, momentum, cut), sums in zip(found, reduced(parts), strict=True):
        radius, q = radii_of(claim, cut).view(cut.touched), widened(claim.tensor)
        along = sums[0] / radius.square()
        if claim.space.is_bound:
            inside = radius * (1 - AT_BOUND * torch.finfo(q.dtype).eps)
            along = torch.where((along < 0) & (sums[1] >= inside.square()), along, 0.0)
        m = widened(momentum)
        for section in cut.sections:
            own = section.of(m)
            own.addcmul_(section.of(q), section.column(along, own), value=-1)
        if m is not momentum:
            momentum.copy_(m)


def _project_wholes(pairs: Sequence[Pair]) -> None:
    """Of spaces that need whole matrices: by their owners."""
    for several in alike([claim for claim, _ in pairs]):
        own = [pairs[i] for i in several]
        exchange = exchange_of([claim for claim, _ in own])
        sent = [[widened(claim.tensor).contiguous(), widened(m).contiguous()] for claim, m in own]
        wholes = exchange.gather(sent)
        for n, (q, momentum) in wholes.items():
            space = own[n][0].space
            _project(space, Phase(space.view(q), radius=space.radius_of(q)), momentum)
        shards, _ = exchange.scatter({n: momentum for n, (_, momentum) in wholes.items()}, (), sent[0][0])
        for (_, momentum), shard in zip(own, shards, strict=True):
            momentum.copy_(shard)


def warn_without_momenta(optimizer: Optimizer) -> None:
    warnings.warn(
        f"momentum='project' found no {' or '.join(NAMES)} in the state of {type(optimizer).__name__}, so that there "
        f"is nothing to project",
        stacklevel=users_line(),
    )
