"""Tables that tell kernels where the tensors of a bucket lie. They hang on the bucket and die with its views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._random.philox import TILE, as_seed
from ..._step.buckets import MOVED, SIZES, Bucket
from ..._step.integrate import Scalar
from ..._step.letters import PartlyOwed, Ready
from ...constraints import Circle, Constraint, Sphere
from . import blocks
from .entries import CHUNK
from .rows import LANES, ROWS

if TYPE_CHECKING:
    from ..._step.run import Gradients

READABLE = {torch.float32, torch.bfloat16, torch.float16}


class Chunks(NamedTuple):
    """What the program instances of one launch work on: tensor, replica, and where to start in it."""

    table: Tensor
    size: int
    lanes: int = 0  # of a kernel for rows


class Blocks(NamedTuple):
    """What the program instances of launches on blocks that are longer than a row's kernel takes work on.

    chunks: (tensor, replica, row, start, block); blocks: (tensor, replica, row, first chunk, chunks). Blocks of a
    replica stand together. ``products`` and ``terms`` are what one launch leaves to the next.
    """

    chunks: Tensor
    blocks: Tensor
    products: Tensor
    terms: Tensor


class Table:
    """Of one bucket, cut into chunks of one replica of one tensor.

    Of a tensor that is a part of its parameter, entries and rows have the numbers they have in that, from ``starts``
    on. Addresses are those of number 0, where nothing of it may be.

    tensors: for every tensor the addresses of position, momentum, slack variable and its momentum, the number behind
        the last entry of a replica, the number of its noise stream, the entries of a row; the channels where memory has
        them last, else 1; the address of its radii; the number of its first entry; on circles, how many entries that
        follow each other have the same radius, and how many radii there are.
    entries: chunks of entries. All chunks of a replica stand together.
    rows: chunks of rows, one launch for every class of lengths; none where the space acts entry by entry.
    blocks: of rows that are longer; None where there are none.
    gradients: for every tensor the address of its gradient, which may change from step to step.
    """

    def __init__(self, bucket: Bucket, replicas: int) -> None:
        self.device, self.replicas = bucket.device, replicas
        counts = [p.numel() // replicas for p in bucket.params]
        self._channels = channels = [channels_of(p) or 1 for p in bucket.params]
        self.permuted = any(c > 1 for c in channels)
        if isinstance(bucket.space, Sphere):
            lengths = [bucket.space.view(p.detach()).shape[-1] for p in bucket.params]
        else:  # there a length means only which stretches have channels last
            lengths = [p.shape[1:].numel() if p.ndim > 2 else p.numel() for p in bucket.params]
        momenta = [next((s[name] for name in MOVED if name in s), None) for s in bucket.states]
        slots = [[s.get(slot) for slot in (*bucket.space.slots, "", "")[:2]] for s in bucket.states]
        self.has_momentum = momenta[0] is not None
        self.is_compiled = False  # whether the kernels of a first step were compiled together
        self.radii = self._radii(bucket)
        self.starts = starts = [start or 0 for start in bucket.starts]  # None: no noise is drawn
        self.is_part = any(starts)
        in_rows = isinstance(bucket.space, Sphere)
        many_radii = has_many_radii(bucket.space, self.radii)
        rows = []
        for i, (p, m, pair, length) in enumerate(zip(bucket.params, momenta, slots, lengths, strict=True)):
            first = starts[i] // length if in_rows else starts[i]  # of slack variables
            at = [address(p, starts[i]), address(m, starts[i]), *(address(x, first) for x in pair)]
            radius, *repeats = self.radii[i]
            radii = address(radius, first if in_rows and many_radii else 0)
            numbers = [starts[i] + counts[i], bucket.streams[i], length, channels[i]]
            rows.append([*at, *numbers, radii, starts[i], *repeats])
        self.tensors = upload(rows, torch.int64, self.device)
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        self.entries = self._cut(range(len(counts)), [start // TILE * TILE for start in starts], ends, CHUNK)
        self.rows: list[Chunks] = []
        self.blocks: Blocks | None = None
        if in_rows:
            spans = [range(a // n, b // n) for a, b, n in zip(starts, ends, lengths, strict=True)]
            classes = [lanes_for(length) for length in lengths]
            for lanes in sorted({lane for lane in classes if lane is not None}):
                own = [i for i, lane in enumerate(classes) if lane == lanes]
                cut = self._cut(own, [spans[i].start for i in own], [spans[i].stop for i in own], ROWS)
                self.rows.append(cut._replace(lanes=lanes))
            long = [i for i, lane in enumerate(classes) if lane is None]
            self.blocks = self._cut_blocks([(i, spans[i], lengths[i]) for i in long]) if long else None
        self.flag = torch.zeros((), dtype=torch.bool, device=self.device)  # of the finite check
        self.gradients = self._buffer = torch.zeros(len(counts), dtype=torch.int64, device=self.device)
        self.gradient_dtype = torch.float32
        self._strides = [p.stride() if c > 1 else row_major(p) for p, c in zip(bucket.params, channels, strict=True)]
        self._addresses: list[int] = []
        self._lasting: tuple[list[int], Tensor] = [], self.gradients
        self._numbers: dict[Any, tuple[list[Any] | None, Tensor, Tensor]] = {}
        self._nothing = torch.zeros((), dtype=torch.float64, device=self.device)
        self._seeds: dict[int, Tensor] = {}

    def _cut(self, tensors: Iterable[int], firsts: Sequence[int], ends: Sequence[int], step: int) -> Chunks:
        starts = [np.arange(first, end, step) for first, end in zip(firsts, ends, strict=True)]
        pairs = zip(tensors, starts, strict=True)
        of_one = np.concatenate([np.stack([np.full_like(s, t), s], -1) for t, s in pairs])
        chunks = np.empty((self.replicas, len(of_one), 3), dtype=np.int64)
        chunks[:, :, 0], chunks[:, :, 2] = of_one[:, 0], of_one[:, 1]
        chunks[:, :, 1] = np.arange(self.replicas)[:, None]
        return Chunks(torch.from_numpy(chunks).to(self.device), self.replicas * len(of_one))

    def _cut_blocks(self, long: Sequence[tuple[int, range, int]]) -> Blocks:
        """``long``: number, rows and length of every tensor with rows of that kind."""
        of_one = [(tensor, row, length) for tensor, rows, length in long for row in rows]
        chunks, cut = list[Any](), list[Any]()
        for replica in range(self.replicas):
            for tensor, row, length in of_one:
                starts = range(row * length // 128 * 128, (row + 1) * length, blocks.CHUNK)
                cut.append((tensor, replica, row, len(chunks), len(starts)))
                chunks += [(tensor, replica, row, start, len(cut) - 1) for start in starts]
        return Blocks(
            upload(chunks, torch.int64, self.device),
            upload(cut, torch.int64, self.device),
            torch.zeros(len(chunks), blocks.SUMS, device=self.device),
            torch.zeros(len(cut), 2 * blocks.TERMS, device=self.device),
        )

    def read(self, gradients: Gradients) -> None:
        """Look up where the gradients of a step are. Those that kernels cannot read are copied until the step ends.

        The finite check and the step are given the same list, which is looked at once. It holds the copies.
        """
        if gradients.noted is not None and gradients.noted[0] is self:
            return
        dtypes = {g.dtype for g in gradients}
        readable: Sequence[Tensor] = gradients
        if self.permuted:
            # Strides of dimensions of size 1 may be any number.
            orders = zip(gradients, self._strides, self._channels, strict=True)
            plain = all(g.stride() == stride or channels_of(g) == c for g, stride, c in orders)
        else:
            plain = all(map(Tensor.is_contiguous, gradients))
        if len(dtypes) > 1 or not dtypes <= READABLE or not plain or any(map(Tensor.is_neg, gradients)):
            dtype = gradients[0].dtype if len(dtypes) == 1 and dtypes <= READABLE else torch.float32
            places = zip(gradients, self._strides, strict=True)
            readable = [g.new_empty_strided(g.shape, stride, dtype=dtype).copy_(g) for g, stride in places]
        gradients.noted = self, readable if readable is not gradients else None
        self.gradient_dtype = readable[0].dtype
        addresses = list(map(Tensor.data_ptr, readable))
        if self.is_part:
            addresses = list(map(address, readable, self.starts))
        if is_capturing(self.device):  # a table of its own: replays must read what they were captured with
            keep_for_replays(self)
            self.gradients, self._addresses = self._lasting_table(addresses), []
        elif addresses != self._addresses:
            self.gradients, self._addresses = self._buffer, addresses
            self._buffer.copy_(pinned(addresses, torch.int64, self.device), non_blocking=True)
        elif addresses != self._lasting[0]:  # the same memory twice, as in training loops that will be captured
            self._lasting = addresses, upload(addresses, torch.int64, self.device)

    def _lasting_table(self, addresses: list[int]) -> Tensor:
        """A table that no later step writes: one made before the capture, else one that every replay copies."""
        if addresses != self._lasting[0]:
            return upload(addresses, torch.int64, self.device)
        keep_for_replays(self._lasting[1])
        return self._lasting[1]

    def numbers(self, ops: Sequence[Ready], decay: Scalar) -> tuple[Tensor, Tensor, Tensor]:
        """The coefficients of a stage on the device, (2·letters + 1, 1 or R), the numbers of its draws, what is owed.

        Numbers that the host has are copied when they change. Those on the device are copied there.
        """
        owed, values = self._nothing, list[Scalar]()
        for _, (first, *others), _ in ops:
            if isinstance(first, PartlyOwed):
                owed = first.owed
                values += [first.now, first.share]
            else:
                values += [first, *others, 0.0][:2]
        values.append(decay)
        shown = [x.shape if isinstance(x, Tensor) else x for x in values]
        key = tuple([(op.letter, op.draw) for op in ops])
        before, numbers, draws = self._numbers.get(key, (None, self._nothing, self._nothing))
        if before != shown:
            columns = max([x.numel() for x in values if isinstance(x, Tensor)], default=1)
            host = [[0.0 if isinstance(x, Tensor) else x] * columns for x in values]
            numbers = upload(host, torch.float32, self.device)
            if before is None:
                drawn = [op.draw & 0xFFFFFFFF for op in ops if op.draw is not None] or [0]
                draws = upload([*drawn, 0], torch.int64, self.device)
            if not is_capturing(self.device):  # a captured copy runs with the replay only
                self._numbers[key] = shown, numbers, draws
        if is_capturing(self.device):  # other numbers of a later step take their place here, not in the graph
            keep_for_replays(numbers, draws)
        for row, x in enumerate(values):
            if isinstance(x, Tensor):
                numbers[row].copy_(x)
        return numbers, draws, owed

    def seeds(self, seed: int | Tensor) -> Tensor:
        """The seed on the device, or one for every replica."""
        if isinstance(seed, Tensor):
            return seed.to(self.device).contiguous()
        if seed not in self._seeds:
            self._seeds = {seed: as_seed(seed, self.device)}
        if is_capturing(self.device):
            keep_for_replays(self._seeds[seed])
        return self._seeds[seed]

    def _radii(self, bucket: Bucket) -> list[tuple[Tensor, int, int]]:
        """For every tensor its radii, and on circles where they act. Kernels read them, so they live with the table."""
        space = bucket.space
        radius = getattr(space, "radius", None)
        if isinstance(space, Circle) and isinstance(radius, Tensor):
            radius = radius.detach().to(self.device, torch.float32)
            return [radii_of_entries(radius, p.shape) for p in bucket.params]
        if not isinstance(space, Sphere):
            return [(torch.zeros((), device=self.device), 1, 1)] * len(bucket.params)
        if space.takes_sizes:
            return [(state[SIZES].contiguous(), 1, 1) for state in bucket.states]
        radius = radius if isinstance(radius, Tensor) else torch.tensor([radius])
        return [(radius.to(self.device, torch.float32).contiguous(), 1, 1)] * len(bucket.params)


def radii_of_entries(radius: Tensor, shape: torch.Size) -> tuple[Tensor, int, int]:
    """Radii such that entry i has number (i // inner) % period of them; ``radius`` broadcasts to the shape."""
    sizes = (1,) * (len(shape) - radius.ndim) + tuple(radius.shape)
    several = [place for place, size in enumerate(sizes) if size > 1]
    if not several:
        return radius.reshape(1), 1, 1
    first, last = several[0], several[-1] + 1
    radii = radius.expand(*sizes[:first], *shape[first:last], *sizes[last:]).contiguous()
    return radii, shape[last:].numel(), radii.numel()


def address(x: Tensor | None, start: int) -> int:
    """Where the entry of number 0 is, if the first one has the number ``start``."""
    return 0 if x is None else x.data_ptr() - start * x.element_size()


def has_many_radii(space: Constraint, radii: Sequence[tuple[Tensor, int, int]]) -> bool:
    """Whether every row has its own."""
    return radii[0][0].numel() > 1 or space.takes_sizes


def table_of(bucket: Bucket, replicas: int) -> Table:
    key = ("table", replicas)
    if key not in bucket.kept:
        if is_capturing(bucket.device):
            raise RuntimeError(
                f"the first step of {', '.join(bucket.names[:3])}{', …' * (len(bucket.names) > 3)} cannot be captured: "
                f"it makes tables of where these tensors are. Take a step before torch.cuda.graph(), from gradients of "
                f"the same parameters"
            )
        bucket.kept[key] = Table(bucket, replicas)
    table: Table = bucket.kept[key]
    return table


def channels_of(x: Tensor) -> int | None:
    """1 for row-major memory; the channels where memory has them last: dimension 1 of images, 0 of a transposed matrix.

    None for any other order.
    """
    if x.is_contiguous():
        return 1
    if x.ndim == 2:
        return len(x) if x.t().is_contiguous() else None
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    dense = x.ndim in formats and x.is_contiguous(memory_format=formats[x.ndim])
    return x.shape[1] if dense else None


def lanes_for(length: int) -> int | None:
    """The smallest kernel for rows of this length, which may start anywhere in a tile; None if there is none."""
    entries = length if length % 128 == 0 else length + 127
    return next((lanes for lanes in LANES if 4 * lanes >= entries), None)


def row_major(x: Tensor) -> tuple[int, ...]:
    """The strides of a contiguous tensor of this shape."""
    return torch.empty(x.shape, device="meta").stride()


def upload(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor on the device, for which the host does not wait."""
    host = pinned(values, dtype, device)
    if is_capturing(device):  # what it is copied to is the graph's, as all that a capture allocates
        keep_for_replays(host)
    return host.to(device, non_blocking=True)


def pinned(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor on the host, in memory that the device copies from by itself."""
    return torch.tensor(values, dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


def is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def keep_for_replays(*found: object) -> None:
    CAPTURED.update({id(x): x for x in found})


CAPTURED: dict[int, object] = {}
"""Tables that captured graphs read, and pinned memory that replays copy from. They are small, captures are few."""
