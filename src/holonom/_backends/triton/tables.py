"""Tables that tell kernels where the tensors of a bucket lie. They hang on the bucket and die with its views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._step.buckets import Bucket
from ..._step.integrate import Scalar
from ..._step.letters import Ready
from ...constraints.base import MOMENTA
from .entries import CHUNK


class Table:
    """Of one bucket, cut into chunks of one replica of one tensor.

    tensors: for every tensor the addresses of position, momentum, slack variable and its momentum, the entries of one
        replica, and the number of its noise stream.
    chunks: for every chunk its tensor, its replica and where it starts in it. All chunks of a replica stand together.
    gradients: for every tensor the address of its gradient, which may change from step to step.
    """

    def __init__(self, bucket: Bucket, replicas: int) -> None:
        self.device = bucket.device
        counts = [p.numel() // replicas for p in bucket.params]
        momenta = [next((s[name] for name in (*MOMENTA, "last_noise") if name in s), None) for s in bucket.states]
        slots = [[s.get(slot) for slot in (*bucket.space.slots, None, None)[:2]] for s in bucket.states]
        self.states = [x for x in (*momenta, *(x for pair in slots for x in pair)) if x is not None]
        self.has_momentum = momenta[0] is not None
        rows = [
            [*(0 if x is None else x.data_ptr() for x in (p, m, *pair)), count, stream]
            for p, m, pair, count, stream in zip(bucket.params, momenta, slots, counts, bucket.streams, strict=True)
        ]
        starts = [np.arange(0, count, CHUNK) for count in counts]
        of_one = np.concatenate([np.stack([np.full_like(s, t), s], -1) for t, s in enumerate(starts)])
        chunks = np.empty((replicas, len(of_one), 3), dtype=np.int64)
        chunks[:, :, 0], chunks[:, :, 2] = of_one[:, 0], of_one[:, 1]
        chunks[:, :, 1] = np.arange(replicas)[:, None]
        self.replicas, self.size = replicas, replicas * len(of_one)
        self.tensors = upload(rows, torch.int64, self.device)
        self.chunks = torch.from_numpy(chunks).to(self.device)
        self.gradients = self.tensors  # of none
        self._addresses: list[int] = []
        self._numbers: dict[Any, tuple[list[Any], Tensor, Tensor]] = {}

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        addresses = [g.data_ptr() for g in gradients]
        if addresses != self._addresses:
            self._addresses, self.gradients = addresses, upload(addresses, torch.int64, self.device)

    def numbers(self, ops: Sequence[Ready], decay: Scalar) -> tuple[Tensor, Tensor]:
        """The coefficients of a stage on the device, (2·letters + 1, 1 or R), and the numbers of its draws.

        Numbers that the host has are copied when they change. Those on the device are copied there.
        """
        values: list[Scalar] = [x for op in ops for x in (*op.numbers, 0.0)[:2]] + [decay]
        shown = [None if isinstance(x, Tensor) else x for x in values] + [op.draw for op in ops]
        key = tuple(op.letter for op in ops)
        if key not in self._numbers or self._numbers[key][0] != shown:
            columns = max([x.numel() for x in values if isinstance(x, Tensor)], default=1)
            host = [[0.0 if isinstance(x, Tensor) else x] * columns for x in values]
            draws = [op.draw & 0xFFFFFFFF for op in ops if op.draw is not None] or [0]
            made = upload(host, torch.float32, self.device), upload([*draws, 0], torch.int64, self.device)
            self._numbers[key] = shown, *made
        _, numbers, drawn = self._numbers[key]
        for row, x in zip(numbers, values, strict=True):
            if isinstance(x, Tensor):
                row.copy_(x)
        return numbers, drawn


def upload(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor on the device; from pinned memory, so that the host does not wait."""
    host = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)
