"""Parameters that were changed between two steps: in-place edits are taken up, moved parameters refused."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._devices import is_host
from .._torch import full_precision
from ..constraints import Free
from ..constraints.base import Constraint, widened
from ..errors import ConstraintError
from .buckets import SIZES, Bucket, State
from .integrate import Eager
from .joint import gather, scatter_

Kind = tuple[torch.dtype, torch.device, torch.Size]
UNKNOWN = -1  # how often a parameter was written when its state belonged to it


def kind_of(p: Tensor) -> Kind:
    return p.dtype, p.device, p.shape


def refuse_moved(bucket: Bucket, kinds: dict[Tensor, Kind]) -> None:
    """model.to() leaves the state behind. Another order in memory is no reason to refuse."""
    for p, name in zip(bucket.given, bucket.names, strict=True):
        dtype, device, shape = kinds[p]
        if p.dtype != dtype or p.device != device:
            raise RuntimeError(
                f"{name} was {dtype} on {device} when the optimizer was built and is {p.dtype} on {p.device} now: "
                f"convert or move the model first, then build the optimizer (and load this one's state_dict())"
            )
        if p.shape != shape:
            raise RuntimeError(
                f"{name} had shape {tuple(shape)} when the optimizer was built and has {tuple(p.shape)} now: "
                f"build the optimizer again"
            )
        if not bucket.space.traits.joint:
            bucket.check_view(p, name)


def refuse_gradients(bucket: Bucket, gradients: Sequence[Tensor]) -> None:
    """Raise for the first gradient that a step cannot use, if there is one."""
    for p, g, name in zip(bucket.params, gradients, bucket.names, strict=True):
        if g.layout != torch.strided or g.shape != p.shape:
            _refuse_gradient(p, g, name)


def _refuse_gradient(p: Tensor, gradient: Tensor, name: str) -> None:
    if gradient.layout != torch.strided:
        raise RuntimeError(
            f"{name} has a {gradient.layout} gradient; momenta and constraints need all entries. "
            f"Build the embedding with sparse=False, or give that parameter to another optimizer."
        )
    raise RuntimeError(
        f"{name} has shape {tuple(p.shape)}, but its gradient has shape {tuple(gradient.shape)}: one of them was "
        f"replaced or resized through .data. Call backward() again before the step."
    )


def lift_(space: Constraint, q: Tensor, state: State) -> None:
    """Set the slots to the values that put the present position on the manifold."""
    for slot, value in zip(space.slots, space.lift(widened(q)), strict=True):
        if slot in state:
            state[slot].copy_(value)  # views of it stay valid
        elif slot != "slack_momentum" or "momentum" in state:
            state[slot] = value


@full_precision()
def refuse_unlandable(bucket: Bucket, versions: dict[int, int], first: bool) -> None:
    """Raise for weights, changed in place, that cannot be moved to the manifold; the step takes up all others.

    What a step could take up in part only (matrices and level sets on a device) is taken up now: the host may wait.
    Before the ``first`` step the weights decide the state to the last bit: ranks that are given the same weights agree.
    """
    space = bucket.space
    now = type(space).adopt_ is Constraint.adopt_ or (space.traits.can_fail and not is_host(bucket.device))
    for unit in bucket.units():
        known = list(map(versions.__getitem__, unit.constrained_ids))
        if unit.writes() == known:
            continue
        # Of a loaded checkpoint, what rounding left since the last polish must not be taken for an edit.
        fits = is_near if UNKNOWN in known else agrees
        if not fits(unit):
            here, q = gather(space, unit.params, unit.names, unit.states[0].get(SIZES))
            name = ", ".join(unit.names)
            refuse_non_finite(here, q, name)
            q = q if now else q.clone()
            here.land_(q, name)
            if now:
                scatter_(here, unit.params, q)
                lift_(here, q, unit.states[0])
                make_tangent_(unit)
        elif first:
            here, q = gather(space, unit.params, unit.names, unit.states[0].get(SIZES))
            lift_(here, q, unit.states[0])
    versions.update(zip(bucket.constrained_ids, bucket.writes(), strict=True))


def refuse_non_finite(space: Constraint, p: Tensor, name: str) -> None:
    if not bool(p.detach().isfinite().all()):
        raise ConstraintError(f"{space!r} on {name}: the weights hold NaN or infinity; restore them first")


@full_precision()
def adopt_(buckets: Sequence[Bucket]) -> None:
    """Take up positions that were written from outside now, as the next step would."""
    if buckets:
        stage = Eager()
        stage.begin(buckets, None, 1.0, 0.0, None)
        stage.run((), lambda bucket, draw: [], None)
        stage.end(None)


@full_precision()
def project_(bucket: Bucket) -> None:
    """Move parameters to the nearest points of their manifold; state and momenta follow."""
    if isinstance(bucket.space, Free):
        return
    for unit in bucket.units():
        space, params = unit.landed_as()
        here, q = gather(space, params, unit.names, unit.states[0].get(SIZES))
        refuse_non_finite(here, q, ", ".join(unit.names))
        here.land_(q, ", ".join(unit.names))
        scatter_(here, params, q)
        if here.traits.can_fail:  # to rounding, where a step takes up what is farther off
            lift_(here, q, unit.states[0])
    adopt_([bucket])
    make_tangent_(bucket)


@full_precision()
def make_tangent_(bucket: Bucket) -> None:
    """Project the momenta onto the tangent space."""
    phases = bucket.phases()
    for phase in phases:
        if phase.p is not None:
            bucket.space.project_(phase, *phase.momenta())
    bucket.keep_momenta(phases)
    drop_normal_parts_(bucket)


@full_precision()
def drop_normal_parts_(bucket: Bucket) -> None:
    """Remove from the momenta what letters may leave off the tangent space. Other momenta are not written."""
    phases = bucket.phases()
    for phase in phases:
        if phase.p is not None:
            for momentum, tangent in zip(phase.momenta(), bucket.space.tangent(phase), strict=True):
                if momentum is not tangent:
                    momentum.copy_(tangent)
    bucket.keep_momenta(phases)


def is_near(bucket: Bucket) -> bool:
    """Whether the first phase of a bucket has not left its manifold."""
    return bool(bucket.space.residual(bucket.phases()[0]) <= bucket.space.lost)


def agrees(bucket: Bucket) -> bool:
    """Whether position and state of the first phase of a bucket belong together."""
    return bucket.space.holds(bucket.phases()[0], bucket.precision)
