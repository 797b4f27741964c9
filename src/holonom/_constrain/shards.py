"""What one rank has of held weights: local tensors, their float32 masters, and copies from before a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._sharding.shards import writes
from .._torch import copy_
from .claims import Claim


def adopted(claim: Claim) -> Tensor:
    """The float32 weights of half-precision ones; what was written from outside replaces them."""
    seen = claim.tensor
    if claim.master is None:
        claim.master = seen.float()
    claim.master = claim.master.to(seen.device)  # the model may have been moved since
    # In place, as a captured graph needs it.
    claim.master.copy_(torch.where(claim.master.to(seen.dtype) == seen, claim.master, seen.float()))
    return claim.master


def moved(claim: Claim) -> Tensor:
    """The weights after the optimizer's step; in float32 for half precision, else themselves."""
    if not claim.is_narrow:
        return claim.tensor
    assert claim.master is not None
    seen = claim.master.to(claim.tensor.dtype)  # as the optimizer found it
    return claim.tensor.float().sub_(seen).add_(claim.master)


def store_(claim: Claim, q: Tensor) -> None:
    """Write what :func:`moved` gave, and others have changed, where it is no view of the weights."""
    if claim.is_narrow:
        assert claim.master is not None
        claim.master.copy_(q)
        claim.tensor.copy_(q)


class Shards:
    """Claims whose blocks other ranks have a part of, as this rank's shards.

    ``before`` are the shards as they were before the last step, in the precision of the arithmetic, where ``keeps``.
    ``edited``: others have written the weights between the last two steps.
    """

    def __init__(self, claims: Sequence[Claim], group: int, place: int, update: str, keeps: bool) -> None:
        self.claims, self.group, self.place, self.update, self.keeps = list(claims), group, place, update, keeps
        self.space = claims[0].space
        self.before: list[Tensor] = []
        self.edited = True
        self._writes: list[int] = []

    def start(self) -> None:
        """Before the optimizer's step: keep the weights as they are."""
        self.edited = self._writes != [writes(claim.parameter) for claim in self.claims]
        now = [adopted(claim) if claim.is_narrow else claim.tensor for claim in self.claims]
        if not self.keeps:
            return
        if [(x.shape, x.device, x.dtype) for x in self.before] != [(x.shape, x.device, x.dtype) for x in now]:
            self.before = [torch.empty_like(x) for x in now]
        copy_(self.before, now)

    def note(self) -> None:
        """What was written until now was written by the step."""
        self._writes = [writes(claim.parameter) for claim in self.claims]
