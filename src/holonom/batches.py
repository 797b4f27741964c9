"""Data that stays on the device and is served by index, so that a training loop can be captured."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ._random.philox import uniforms
from .errors import EnsembleError

_ORDER = 0x5EED  # the stream that shuffles; parameters count from 0
_AHEAD = {"cpu": 1 << 17, "cuda": 1 << 21}  # examples whose order is drawn at once, if an epoch has fewer


class Batches(Protocol):
    """What a training loop needs to know about data: an order per epoch, and the batch at a place in it."""

    shared: bool
    per_epoch: int

    def order(self, epoch: int) -> Tensor:
        """(per_epoch, …) indices; depends on the epoch alone, so a resumed run repeats it."""

    def take(self, index: Tensor) -> tuple[Tensor, ...]:
        """The batch at one row of the order: inputs, then targets. No value may be read back to the host."""


class Shuffled:
    """Examples in a fresh random order every epoch.

    Args:
        inputs, targets: (N, …) for all replicas, or (R, N, …) with ``own_data=True``.
        size: examples in a batch; examples that do not fill a batch are left out of that epoch.
        seeds: ``ensemble.seeds``. Every replica shuffles by its own; one seed (0-dim) serves all the same batches.
        own_data: every replica has data of its own.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, size: int, seeds: Tensor, own_data: bool = False) -> None:
        self.points = inputs.shape[1 if own_data else 0]
        if targets.shape[: 2 if own_data else 1] != inputs.shape[: 2 if own_data else 1]:
            raise EnsembleError(f"{tuple(inputs.shape)} inputs and {tuple(targets.shape)} targets do not match")
        if not isinstance(seeds, Tensor) or seeds.dtype != torch.int64:
            kind = seeds.dtype if isinstance(seeds, Tensor) else type(seeds).__name__
            raise EnsembleError(f"seeds are ensemble.seeds, or one int64 (torch.tensor(0)), got {kind}")
        if own_data and seeds.shape != inputs.shape[:1]:
            raise EnsembleError(f"data for {len(inputs)} replicas, seeds of shape {tuple(seeds.shape)}")
        if not 1 <= size <= self.points:
            raise EnsembleError(f"a batch holds between 1 and {self.points} of the examples, got {size}")
        self.inputs, self.targets = inputs, targets
        self.size = size
        self.seeds = seeds.to(inputs.device)
        self.own_data = own_data
        self.shared = seeds.ndim == 0
        self.per_epoch = self.points // size
        ahead = _AHEAD.get(inputs.device.type, _AHEAD["cpu"])
        self._ahead = max(1, ahead // (self.points * self.seeds.numel()))
        self._drawn: tuple[int, Tensor] | None = None
        self._rows = torch.arange(len(self.seeds), device=inputs.device)[:, None] if own_data else None

    def order(self, epoch: int) -> Tensor:
        """(per_epoch, R, size), or (per_epoch, size) if all replicas see the same batches."""
        if self._ahead == 1:
            return self._orders(epoch)[0]
        first = epoch - epoch % self._ahead
        if self._drawn is None or self._drawn[0] != first:
            self._drawn = first, self._orders(first)
        return self._drawn[1][epoch - first]

    def _orders(self, first: int) -> Tensor:
        """Those of several epochs: drawn one by one, small ones would take longer to ask for than to draw."""
        epochs = torch.arange(first, first + self._ahead, device=self.inputs.device)
        ranks = uniforms(self.points, self.seeds, epochs.view(-1, *[1] * self.seeds.ndim, 1), _ORDER).argsort(-1)
        used = ranks[..., : self.per_epoch * self.size]
        return used.reshape(self._ahead, *self.seeds.shape, self.per_epoch, self.size).movedim(-2, 1).contiguous()

    def take(self, index: Tensor) -> tuple[Tensor, ...]:
        """The inputs and targets at one row of the order."""
        where = index if self._rows is None else (self._rows, index)
        return self.inputs[where], self.targets[where]


class Windows:
    """Successive windows of a text laid out as (time, streams), all replicas reading the same; nothing is shuffled.

    Serves (length, streams) tokens and the tokens that follow them.
    """

    shared = True

    def __init__(self, streams: Tensor, length: int) -> None:
        self.streams, self.length = streams, length
        self.per_epoch = (len(streams) - 1) // length
        if self.per_epoch < 1:
            raise EnsembleError(f"a text of {len(streams)} steps has no window of {length} and its successor")
        self._offsets = torch.arange(length, device=streams.device)

    def order(self, epoch: int) -> Tensor:
        """(per_epoch,) places where windows begin; the same in every epoch."""
        return torch.arange(self.per_epoch, device=self.streams.device) * self.length

    def take(self, index: Tensor) -> tuple[Tensor, ...]:
        """(length, streams) tokens from one place on, and the tokens that follow them."""
        rows = index + self._offsets
        return self.streams[rows], self.streams[rows + 1]
