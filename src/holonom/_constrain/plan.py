"""What the hooks of a handle do at a step: the buckets of its claims, and what they need of other ranks.

In this order, on every rank: one sum over ranks for all spheres whose blocks are shared, and one all-to-all there and
one back for all parameters that need whole matrices. Where one rank may fail to move what only it has, the sum also
says whether one did. Without any of these nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._sharding.collectives import Groups, reduced
from .._sharding.shards import is_sharded, local
from .._step.integrate import Scalar
from ..errors import ProjectionError
from .buckets import Bucket, Placed, bucketed
from .claims import Claim, ranks_of
from .exchange import alike
from .owned import Owned
from .shards import Shards
from .shared import SharedSpheres

Rates = Callable[[Any], tuple[Scalar, Scalar]]
"""The lr of a bucket, and what of it is a weight decay to be left out."""


class Plan:
    """All claims of a handle, as what moves together."""

    def __init__(self, claims: Sequence[Claim], optimizer: Optimizer, update: str, drops: bool, track: bool) -> None:
        self.stepped = False  # since it was made
        self._optimizer, self.claims = optimizer, [claim for claim in claims if claim.parameter.numel()]
        needs_old = update != "plain" or drops
        keeps = needs_old or track
        kinds: dict[str, list[Placed]] = {"local": [], "summed": [], "gathered": []}
        for own in _placed(claims, optimizer):
            kinds[own[0].kind].append(own)
        self.buckets = bucketed(kinds["local"], update, keeps)
        self.spheres = [
            SharedSpheres([c for c, *_ in own], *own[0][1:], update, keeps, needs_old)
            for own in _divided(kinds["summed"], lambda claim: tuple(map(id, claim.cut.groups if claim.cut else ())))
        ]
        self._everyone: Groups = ranks_of(optimizer)
        devices = [local(p).device for group in optimizer.param_groups for p in group["params"] if is_sharded(p)]
        self._told: torch.device | None = None  # where ranks say whether they could move what only they have
        if self._everyone and any(_raises(claim, devices[0]) for claim, *_ in kinds["local"]):
            self._told = devices[0]
        self._refused: dict[int, Exception] = {}  # by the number of a bucket
        self.owned = []
        wholes = kinds["gathered"]
        for several in alike([claim for claim, *_ in wholes]):
            kept = keeps or any(wholes[i][0].searches for i in several)
            divided = _divided([wholes[i] for i in several], lambda claim: None)
            shards = [Shards([c for c, *_ in own], *own[0][1:], update, kept) for own in divided]
            self.owned.append(Owned(shards, update, needs_old))

    @property
    def located(self) -> list[Bucket | Shards]:
        """Everything that is in a parameter group."""
        return [*self.buckets, *self.spheres, *(own for several in self.owned for own in several.shards)]

    @property
    def is_valid(self) -> bool:
        """Whether all parameters are in the groups that they were in."""
        groups = self._optimizer.param_groups
        for own in self.located:
            params = groups[own.group]["params"] if own.group < len(groups) else ()
            if own.place >= len(params) or params[own.place] is not own.claims[0].parameter:
                return False
        return True

    def start(self) -> None:
        """Before the optimizer's step. What is wrong here with weights is told to other ranks by :meth:`finish`."""
        self._refused = {}
        for number, bucket in enumerate(self.buckets):
            error = _started(bucket)
            if error is not None and self._told is None:
                raise error
            if error is not None:
                self._refused[number] = error
        for own in (*self.spheres, *(own for several in self.owned for own in several.shards)):
            own.start()

    def finish(self, rates: Rates) -> list[Exception]:
        """After the optimizer's step: move everything; what could not be moved is returned, and left."""
        self.stepped = True
        errors: list[Exception] = []
        for number, own in enumerate(self.buckets):
            error = self._refused.get(number)
            if error is not None:
                own.restore()
            else:
                error = _finished(own, *rates(own))
            errors += [] if error is None else [error]
        parts = [(own.sums(), own.groups) for own in self.spheres]
        if self._told is not None:  # beside the sums, by the same reduction where it goes over the same ranks
            failed = torch.full((), float(bool(errors)), dtype=torch.float64, device=self._told)
            parts.append((failed, self._everyone))
        sums = reduced(parts)
        if self._told is not None and bool(sums.pop()) and not errors:
            errors.append(ProjectionError("another rank could not move weights of its own, and its message says which"))
        for shared, total in zip(self.spheres, sums, strict=True):
            shared.finish(total, *rates(shared))
        for several in self.owned:
            errors += several.finish(rates)
        return errors

    @property
    def lost(self) -> list[Tensor]:
        """How many projections had no root, on the device."""
        everything = [*self.buckets, *(bucket for several in self.owned for bucket in several.buckets)]
        return [own.lost for own in everything if own.lost is not None]


def _raises(claim: Claim, device: torch.device) -> bool:
    """Whether a step that cannot be projected raises at once. Results on a device are not read, unless by a search."""
    return claim.searches or (claim.space.traits.can_fail and device.type == "cpu")


def _started(bucket: Bucket) -> Exception | None:
    try:
        bucket.start()
    except Exception as error:
        return error
    return None


def _finished(bucket: Bucket, lr: Scalar, dropped: Scalar) -> Exception | None:
    """Move a bucket; the others must not be left where they are if it cannot be, nor other ranks wait."""
    try:
        bucket.finish(lr, dropped)
    except Exception as error:
        return error
    return None


def _placed(claims: Sequence[Claim], optimizer: Optimizer) -> list[Placed]:
    """Where the optimizer has the parameters that are not empty."""
    where = {
        id(p): (number, place)
        for number, group in enumerate(optimizer.param_groups)
        for place, p in enumerate(group["params"])
    }
    for claim in claims:
        if id(claim.parameter) not in where:
            raise RuntimeError(
                f"the optimizer no longer owns '{claim.name}', which is held on {claim.text}: call remove() and "
                f"constrain it with rules for what it owns"
            )
    return [(claim, *where[id(claim.parameter)]) for claim in claims if claim.parameter.numel()]


def _divided(placed: Sequence[Placed], key: Callable[[Claim], Any]) -> list[list[Placed]]:
    """By rule, group, space, dtype and device, and by a key of the claim."""
    members: dict[tuple[Any, ...], list[Placed]] = {}
    for own in placed:
        claim, group, _ = own
        found = (claim.rule, group, claim.text, claim.parameter.dtype, claim.tensor.device, key(claim))
        members.setdefault(found, []).append(own)
    return list(members.values())
