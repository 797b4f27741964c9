"""The work of a step as far as it lies on this rank: local gradients, and buckets without those that owners move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .._step.buckets import Bucket
from .._step.run import Gradients, Work
from .gathered import GatheredBucket, GatheredJointBucket
from .shards import is_sharded, local


def gathered_buckets(one: Work) -> list[Bucket]:
    return [b for b in one.buckets if isinstance(b, (GatheredBucket, GatheredJointBucket))]


def localised(one: Work) -> Work:
    """The work of what lies here, without what owners move: local gradients."""
    own = gathered_buckets(one)
    found: Sequence[Any] = one.gradients or [()] * len(one.buckets)
    pairs = zip(one.buckets, found, strict=True)
    kept = [(b, g) for b, g in pairs if b not in own]
    gradients = None
    if one.gradients is not None:
        gradients = [
            Gradients(local_gradient(p, g, name) for p, g, name in zip(b.given, own_gradients, b.names, strict=True))
            for b, own_gradients in kept
        ]
    return one._replace(buckets=[b for b, _ in kept], gradients=gradients)


def local_gradient(p: Tensor, gradient: Tensor, name: str) -> Tensor:
    """The local tensor of a gradient, which must lie as its parameter does."""
    if is_sharded(p) != is_sharded(gradient):
        kinds = ["a DTensor" if is_sharded(x) else "a plain tensor" for x in (p, gradient)]
        raise RuntimeError(f"{name} is {kinds[0]} and its gradient {kinds[1]}: both must be placed alike")
    if is_sharded(p):
        ours, theirs = ((x.device_mesh, tuple(x.placements)) for x in (p, gradient))  # type: ignore[attr-defined]
        if ours != theirs:
            raise RuntimeError(
                f"{name} is placed as {ours[1]} and its gradient as {theirs[1]}: redistribute the gradient to the "
                f"parameter's placements before the step; terms of a sum (Partial) are not yet added"
            )
    return local(gradient)
