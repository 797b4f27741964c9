"""Tables that tell kernels where the tensors of a bucket lie. They hang on the bucket and die with its views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._step.buckets import MOVED, Bucket
from ..._step.integrate import Scalar
from ..._step.letters import Ready
from ...constraints import Sphere
from .entries import CHUNK
from .rows import LANES, ROWS

READABLE = {torch.float32, torch.bfloat16, torch.float16}


class Chunks(NamedTuple):
    """What the program instances of one launch work on: tensor, replica, and where to start in it."""

    table: Tensor
    size: int
    lanes: int = 0  # of a kernel for rows


class Table:
    """Of one bucket, cut into chunks of one replica of one tensor.

    tensors: for every tensor the addresses of position, momentum, slack variable and its momentum, the entries of one
        replica, the number of its noise stream, and the entries of a row.
    entries: chunks of entries. All chunks of a replica stand together.
    rows: chunks of rows, one launch for every class of lengths; none where the space acts entry by entry.
    gradients: for every tensor the address of its gradient, which may change from step to step.
    """

    def __init__(self, bucket: Bucket, replicas: int) -> None:
        self.device, self.replicas = bucket.device, replicas
        counts = [p.numel() // replicas for p in bucket.params]
        lengths = [bucket.space.view(p.detach()).shape[-1] if p.ndim else 1 for p in bucket.params]
        momenta = [next((s[name] for name in MOVED if name in s), None) for s in bucket.states]
        slots = [[s.get(slot) for slot in (*bucket.space.slots, "", "")[:2]] for s in bucket.states]
        self.has_momentum = momenta[0] is not None
        rows = [
            [*(0 if x is None else x.data_ptr() for x in (p, m, *pair)), count, stream, length, 0]
            for p, m, pair, count, stream, length in zip(
                bucket.params, momenta, slots, counts, bucket.streams, lengths, strict=True
            )
        ]
        self.tensors = upload(rows, torch.int64, self.device)
        self.entries = self._cut(range(len(counts)), counts, CHUNK)
        self.rows: list[Chunks] = []
        if isinstance(bucket.space, Sphere):
            classes = [lanes_for(length) for length in lengths]
            for lanes in sorted({lane for lane in classes if lane is not None}):
                own = [i for i, lane in enumerate(classes) if lane == lanes]
                cut = self._cut(own, [counts[i] // lengths[i] for i in own], ROWS)
                self.rows.append(cut._replace(lanes=lanes))
        self.gradients = self.tensors  # of none
        self.gradient_dtype = torch.float32
        self.readable: list[Tensor] = []
        self._given: Sequence[Tensor] | None = None
        self._addresses: list[int] = []
        self._numbers: dict[Any, tuple[list[Any], Tensor, Tensor]] = {}

    def _cut(self, tensors: Iterable[int], sizes: Sequence[int], step: int) -> Chunks:
        starts = [np.arange(0, size, step) for size in sizes]
        pairs = zip(tensors, starts, strict=True)
        of_one = np.concatenate([np.stack([np.full_like(s, t), s], -1) for t, s in pairs])
        chunks = np.empty((self.replicas, len(of_one), 3), dtype=np.int64)
        chunks[:, :, 0], chunks[:, :, 2] = of_one[:, 0], of_one[:, 1]
        chunks[:, :, 1] = np.arange(self.replicas)[:, None]
        return Chunks(torch.from_numpy(chunks).to(self.device), self.replicas * len(of_one))

    def read(self, gradients: Sequence[Tensor]) -> None:
        """Look up where the gradients of a step are. Those that kernels cannot read are copied until the step ends.

        The finite check and the step are given the same list, which is looked at once.
        """
        if gradients is self._given:
            return
        self._given = gradients
        dtypes = {g.dtype for g in gradients}
        self.readable = list(gradients)
        plain = all(map(Tensor.is_contiguous, gradients)) and not any(map(Tensor.is_neg, gradients))
        if len(dtypes) > 1 or not dtypes <= READABLE or not plain:
            dtype = self.readable[0].dtype if self.readable[0].dtype in READABLE else torch.float32
            self.readable = [g.resolve_neg().to(dtype).contiguous() for g in gradients]
        self.gradient_dtype = self.readable[0].dtype
        addresses = [g.data_ptr() for g in self.readable]
        if addresses != self._addresses:
            self._addresses, self.gradients = addresses, upload(addresses, torch.int64, self.device)

    def forget(self) -> None:
        """Keep no gradient alive."""
        self._given, self.readable = None, []

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
        for row, x in enumerate(values):
            if isinstance(x, Tensor):
                numbers[row].copy_(x)
        return numbers, drawn


def lanes_for(length: int) -> int | None:
    """The smallest kernel for rows of this length, which may start anywhere in a tile; None if there is none."""
    entries = length if length % 128 == 0 else length + 127
    return next((lanes for lanes in LANES if 4 * lanes >= entries), None)


def upload(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor on the device; from pinned memory, so that the host does not wait."""
    host = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        CAPTURED.append(host)
    return host.to(device, non_blocking=True)


CAPTURED: list[Tensor] = []
"""Pinned memory that captured graphs copy from at every replay. Tables are small and captures are few."""
