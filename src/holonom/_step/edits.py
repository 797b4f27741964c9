"""Parameters that were changed between two steps: in-place edits are taken up, moved parameters refused."""

from __future__ import annotations

import torch
from torch import Tensor

from .._torch import full_precision
from ..constraints import Free
from ..constraints.base import Constraint, widened
from ..errors import ConstraintError
from .buckets import Bucket, State
from .joint import bucket_of, gather, scatter_

Kind = tuple[torch.dtype, torch.device, torch.Size]


def kind_of(p: Tensor) -> Kind:
    return p.dtype, p.device, p.shape


def refuse_moved(bucket: Bucket, kinds: dict[Tensor, Kind]) -> None:
    """model.to() leaves the state behind. Another order in memory is no reason to refuse."""
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
        if not bucket.space.traits.joint:
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


def lift_(space: Constraint, q: Tensor, state: State) -> None:
    """Set the slots to the values that put the present position on the manifold."""
    for slot, value in zip(space.slots, space.lift(widened(q)), strict=True):
        if slot in state:
            state[slot].copy_(value)  # views of it stay valid
        elif slot != "slack_momentum" or "momentum" in state:
            state[slot] = value


@full_precision()
def take_up(space: Constraint, params: list[Tensor], names: list[str], state: dict[Tensor, State], force: bool) -> None:
    """Continue from parameters that were changed in place, unless their state agrees (and not ``force``).

    Several parameters are those of one joint constraint.
    """
    if isinstance(space, Free) or not any(p.numel() for p in params):
        return
    bucket = bucket_of(space, params, [state[p] for p in params], names)
    if not force and bucket.space.holds(bucket.phases()[0], params[0].dtype):
        return
    here, q = gather(space, params, names)
    if not bool(q.isfinite().all()):
        raise ConstraintError(f"{space!r} on {', '.join(names)}: the weights hold NaN or infinity; restore them first")
    here.land_(q, ", ".join(names))
    scatter_(here, params, q)
    lift_(here, q, state[params[0]])
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
    for phase in bucket.phases():
        if phase.p is not None:
            for momentum, tangent in zip(phase.momenta(), bucket.space.tangent(phase), strict=True):
                if momentum is not tangent:
                    momentum.copy_(tangent)


def agrees(space: Constraint, params: list[Tensor], state: dict[Tensor, State]) -> bool:
    """Whether the values of parameters and their state belong together."""
    bucket = bucket_of(space, params, [state[p] for p in params], [""] * len(params))
    return bucket.space.holds(bucket.phases()[0], params[0].dtype)
