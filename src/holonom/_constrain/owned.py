"""Spaces that need whole matrices: each is moved by the rank that owns it, as a single process would move it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

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
        places = [(own.group, own.place) for own in shards for _ in own.claims]
        for i in self.exchange.mine:
            claim, like = self.claims[i], widened(self.claims[i].tensor)
            q = nn.Parameter(like.new_full(claim.parameter.shape, torch.nan), requires_grad=False)
            self._whole[i] = Claim(claim.rule, claim.name, q, claim.text, claim.space, claim.sizes)
        self.buckets = bucketed([(self._whole[i], *places[i]) for i in self.exchange.mine], update, needs_old)

    def finish(self, rates: Rates) -> list[Exception]:
        """After the optimizer's step: move all matrices. Errors are returned on all ranks."""
        qs = [moved(claim) for claim in self.claims]
        sent = [[q.contiguous()] for q in qs]
        if self.needs_old:
            olds = [old for own in self.shards for old in own.before]
            sent = [[*new, old] for new, old in zip(sent, olds, strict=True)]
        wholes = self.exchange.gather(sent)
        failed: dict[int, float] = {}
        problems: list[Exception] = []
        for bucket in self.buckets:
            numbers = [i for i in self.exchange.mine if any(self._whole[i] is claim for claim in bucket.claims)]
            if self.needs_old:
                edited = False
                for i in numbers:
                    q, old = self._whole[i].tensor, wholes[i][1]
                    edited = edited or not torch.equal(q, old)  # the weights that the last step left, or others
                    q.copy_(old)
                bucket.start(edited)
            for i in numbers:
                self._whole[i].tensor.copy_(wholes[i][0])
            try:
                bucket.finish(*rates(bucket))
            except Exception as error:  # other ranks wait for the weights, whatever it is
                problems.append(error)
                failed |= dict.fromkeys(numbers, 1.0)
        shards, flags = self.exchange.scatter({i: own.tensor for i, own in self._whole.items()}, failed, qs[0])
        for claim, q, shard in zip(self.claims, qs, shards, strict=True):
            q.copy_(shard)
            store_(claim, q)
        if self.claims[0].tensor.device.type == "cpu" and bool(flags.any()) and not problems:
            names = ", ".join(
                f"'{claim.name}'" for claim, flag in zip(self.claims, flags.tolist(), strict=True) if flag
            )
            problems.append(ProjectionError(f"{names}: another rank, which owns these weights, could not project them"))
        return problems
