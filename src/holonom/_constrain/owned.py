"""Spaces that need whole matrices: each is moved by the rank that owns it, as a single process would move it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._step.integrate import Scalar
from ..constraints.base import widened
from ..errors import ProjectionError
from .buckets import bucketed
from .claims import Claim
from .exchange import exchange_of
from .shards import Shards, moved, store_

Rates = Callable[[Any], tuple[Scalar, Scalar]]


class Owned:
    """Parameters of one dtype, device and group of ranks, on spaces that cannot be worked on shard by shard.

    ``shards`` are this rank's, by rule and parameter group; ``buckets`` what it owns, as whole tensors.
    """

    def __init__(self, shards: Sequence[Shards], update: str, needs_old: bool) -> None:
        self.shards = list(shards)
        self.claims = [claim for own in shards for claim in own.claims]
        self.needs_old = needs_old or any(claim.searches for claim in self.claims)
        self.exchange = exchange_of(self.claims)
        self._whole: dict[int, Claim] = {}
        self._shards = [own for own in shards for _ in own.claims]
        for i in self.exchange.mine:
            claim, like = self.claims[i], widened(self.claims[i].tensor)
            q = nn.Parameter(like.new_full(claim.parameter.shape, torch.nan), requires_grad=False)
            self._whole[i] = Claim(claim.rule, claim.name, q, claim.text, claim.space, claim.sizes)
        placed = [(self._whole[i], self._shards[i].group, self._shards[i].place) for i in self.exchange.mine]
        self.buckets = bucketed(placed, update, needs_old)

    def finish(self, rates: Rates) -> list[Exception]:
        """After the optimizer's step: move all matrices. Errors are returned on all ranks."""
        qs = [moved(claim) for claim in self.claims]
        sent = [[q.contiguous()] for q in qs]
        if self.needs_old:
            olds = [old for own in self.shards for old in own.before]
            sent = [[*new, old] for new, old in zip(sent, olds, strict=True)]
        wholes = self.exchange.gather(sent)
        failed: set[int] = set()
        problems: list[Exception] = []
        for bucket in self.buckets:
            numbers = [i for i in self.exchange.mine if any(self._whole[i] is claim for claim in bucket.claims)]
            try:
                if self.needs_old:
                    edited = [self._take_(i, wholes[i][1]) for i in numbers]
                    bucket.start(any(edited))
                for i in numbers:
                    self._whole[i].tensor.copy_(wholes[i][0])
                bucket.finish(*rates(bucket))
            except Exception as error:  # other ranks wait for the weights, whatever it is
                problems.append(error)
                failed |= set(numbers)
        shards, flags = self.exchange.scatter({i: own.tensor for i, own in self._whole.items()}, failed, qs[0])
        for claim, q, shard in zip(self.claims, qs, shards, strict=True):
            q.copy_(shard)
            store_(claim, q)
        for own in self.shards:
            own.note()
        if self.claims[0].tensor.device.type == "cpu" and not problems:
            lost = [f"'{claim.name}'" for claim, flag in zip(self.claims, flags, strict=True) if flag]
            if lost:
                said = f"{', '.join(lost)}: another rank, which owns these weights, could not project them"
                problems.append(ProjectionError(said))
        return problems

    def _take_(self, number: int, old: Tensor) -> bool:
        """Take over a matrix from before the step; returns whether it is another one than the last step left.

        On a device its values are not compared, which would wait: edits that all ranks make are counted on each.
        """
        q = self._whole[number].tensor
        edited = not torch.equal(q, old) if q.device.type == "cpu" else self._shards[number].edited
        q.copy_(old)
        return edited
