"""The launches of a step, kept to be made again.

What a launch is given depends on the numbers of a group and on where its tensors lie. Most steps change neither, and
making the arguments takes the host several times as long as the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ..._step.buckets import Bucket
from .tables import Table, table_of

if TYPE_CHECKING:
    from ..._step.run import Gradients


class Launches:
    """What one step of a group launched. The first of its buckets keeps it, together with the tables."""

    def __init__(self, tables: Sequence[Table], skip: Tensor | None) -> None:
        self.tables, self.skip = list(tables), skip
        self.gradients = [(table.gradients, table.gradient_dtype) for table in tables]
        self.calls: list[tuple[Tensor, Callable[..., Any]]] = []
        self.lasting = True  # whether the arguments are those of the next step, too
        self.key: tuple[Any, ...] = ()  # the objects that the numbers were made from
        self.h = 0.0

    def fit(self, buckets: Sequence[Bucket], key: tuple[Any, ...], skip: Tensor | None) -> bool:
        """Whether a step of these buckets, with numbers made from these objects, would launch the same."""
        return (
            skip is self.skip
            and len(key) == len(self.key)
            and all(map(is_, key, self.key))
            and len(buckets) == len(self.tables)
            and all(table_of(bucket, 1) is table for bucket, table in zip(buckets, self.tables, strict=True))
        )

    def repeat(self, buckets: Sequence[Bucket], gradients: Sequence[Gradients]) -> bool:
        """Launch once more with these gradients; False where they need other kernels, before anything is launched."""
        for table, found, (addresses, dtype) in zip(self.tables, gradients, self.gradients, strict=True):
            table.read(found)
            if table.gradients is not addresses or table.gradient_dtype != dtype:
                return False
        for place, call in self.calls:
            with torch.cuda.device_of(place):  # type: ignore[no-untyped-call] # launched where parameters are
                call()
        count_writes(buckets)
        return True


def count_writes(buckets: Sequence[Bucket]) -> None:
    """Tell autograd what was written."""
    for bucket in buckets:
        increment_version(bucket.params)
