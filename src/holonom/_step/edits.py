"""Parameters that were changed between two steps: in-place edits are taken up, moved parameters refused."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._torch import full_precision, version
from ..constraints import Free
from ..constraints.base import Constraint, widened
from ..errors import ConstraintError
from .buckets import Bucket, State
from .integrate import Eager

Kind = tuple[torch.dtype, torch.device, torch.Size]
UNKNOWN = -1  # how often a parameter was written when its state belonged to it


def kind_of(p: Tensor) -> Kind:
    return p.dtype, p.device, p.shape


def refuse_moved(bucket: Bucket, kinds: dict[Tensor, Kind]) -> None:
    """model.to() leaves the state behind, and a new memory layout may no longer be viewed as blocks."""
    for p, name in zip(bucket.params, bucket.names, strict=True):
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
        bucket.space.check(p.detach(), name)


def refuse_gradient(p: Tensor, gradient: Tensor, name: str) -> None:
    """Raise for a gradient that a step cannot use."""
    if gradient.layout != torch.strided:
        raise RuntimeError(
            f"{name} has a {gradient.layout} gradient; momenta and constraints need all entries. "
            f"Build the embedding with sparse=False, or give that parameter to another optimizer."
        )
    raise RuntimeError(
        f"{name} has shape {tuple(p.shape)}, but its gradient has shape {tuple(gradient.shape)}: one of them was "
        f"replaced or resized through .data. Call backward() again before the step."
    )


def lift_(space: Constraint, p: Tensor, state: State) -> None:
    """Set the slots to the values that put the parameter's present value on the manifold."""
    for slot, value in zip(space.slots, space.lift(widened(p.detach())), strict=True):
        if slot in state:
            state[slot].copy_(value)  # views of it stay valid
        elif slot != "slack_momentum" or "momentum" in state:
            state[slot] = value


@full_precision()
def refuse_unlandable(bucket: Bucket, versions: dict[Tensor, int]) -> None:
    """Raise for weights, changed in place, that cannot be moved to the manifold; the step takes up all others.

    What a step could take up in part only (matrices and level sets on a device) is taken up now: the host may wait.
    """
    space = bucket.space
    now = type(space).adopt_ is Constraint.adopt_ or (space.traits.can_fail and bucket.device.type != "cpu")
    for p, state, name in zip(bucket.params, bucket.states, bucket.names, strict=True):
        if version(p) == versions[p]:
            continue
        # Of a loaded checkpoint, what rounding left since the last polish must not be taken for an edit.
        fits = agrees if versions[p] != UNKNOWN else is_near
        if not isinstance(space, Free) and not fits(space, p, state):
            refuse_non_finite(space, p, name)
            space.land_(p.detach() if now else p.detach().clone(), name)
            if now:
                lift_(space, p, state)
                make_tangent_(Bucket(space, [p], [state], [name]))
        versions[p] = version(p)


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
    for p, state, name in zip(bucket.params, bucket.states, bucket.names, strict=True):
        refuse_non_finite(bucket.space, p, name)
        bucket.space.land_(p.detach(), name)
        if bucket.space.traits.can_fail:  # to rounding, where a step takes up what is farther off
            lift_(bucket.space, p, state)
    adopt_([bucket])
    make_tangent_(bucket)


@full_precision()
def make_tangent_(bucket: Bucket) -> None:
    """Project the momenta onto the tangent space."""
    for phase in bucket.phases():
        if phase.p is not None:
            bucket.space.project_(phase, *phase.momenta())
    drop_normal_parts_(bucket)


@full_precision()
def drop_normal_parts_(bucket: Bucket) -> None:
    """Remove from the momenta what letters may leave off the tangent space. Other momenta are not written."""
    for phase in bucket.phases():
        if phase.p is not None:
            for momentum, tangent in zip(phase.momenta(), bucket.space.tangent(phase), strict=True):
                if momentum is not tangent:
                    momentum.copy_(tangent)


def is_near(space: Constraint, p: Tensor, state: State) -> bool:
    """Whether a parameter has not left its manifold."""
    return bool(space.residual(Bucket(space, [p], [state], [""]).phases()[0]) <= space.lost)


def agrees(space: Constraint, p: Tensor, state: State) -> bool:
    """Whether a parameter's value and its state belong together."""
    return space.holds(Bucket(space, [p], [state], [""]).phases()[0], p.dtype)
