"""Counter-based normals: Philox4x32-10 (Salmon et al., 2011), then Box–Muller.

    key      the 64-bit seed, one per replica
    counter  (step, block, stream, draw): stream = 2·parameter + part, draw = the letter's place in its program

Block 32·t + j of a tensor gives its elements 128·t + 32·w + j, w = 0 … 3, in logical row-major order within a replica.
Runs of 32 elements are contiguous, so that CPUs and GPUs write them in one go; the memory format does not change the
numbers. Seeds and step are tensors: a captured graph counts its own steps, and every replica draws what it
would draw alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
# x·M = x·2³² + x·(M − 2³²): the second product stays below 2⁶³, which signed overflow must not pass.
_MULTIPLIERS = (0xD2511F53 - (1 << 32), 0xCD9E8D57 - (1 << 32))
_WEYL = (0x9E3779B9, 0xBB67AE85)
RUN, TILE = 32, 128

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Tensor, Tensor]) -> Words:
    """Four 32-bit words, as int64, for every counter and key: tensors of shapes that broadcast, or whole numbers."""
    k, m = key
    device = k.device
    counter = tuple(x if isinstance(x, Tensor) else torch.full((), x, device=device) for x in counter)  # type: ignore[assignment]
    # In place from here on: the memory of fresh results would cost more than the arithmetic.
    a, b, c, d, _ = (x.clone() for x in torch.broadcast_tensors(*counter, k))  # type: ignore[no-untyped-call]
    for _round in range(10):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, c = (
            (second >> 32).add_(c).bitwise_xor_(b).bitwise_xor_(k),
            (first >> 32).add_(a).bitwise_xor_(d).bitwise_xor_(m),
        )
        b, d = second.bitwise_and_(WORD), first.bitwise_and_(WORD)
        k, m = (k + _WEYL[0]) & WORD, (m + _WEYL[1]) & WORD
    return a, b, c, d


def as_seed(seed: int | Tensor, device: torch.device) -> Tensor:
    """A seed as an int64 on the device; whole numbers are taken modulo 2⁶⁴."""
    if isinstance(seed, Tensor):
        return seed.to(device)
    return torch.full((), (seed + (1 << 63)) % (1 << 64) - (1 << 63), dtype=torch.int64, device=device)


def normals(tiles: Tensor, streams: Tensor, seeds: Tensor, step: Tensor, draw: Tensor | int) -> Tensor:
    """(*R, T·128) float32 standard normals for T tiles of 128; ``streams`` has one entry a tile."""
    block = tiles[:, None] * RUN + torch.arange(RUN, device=tiles.device)
    seeds = seeds[..., None, None]
    a, b, c, d = philox((step, block, streams[:, None], draw), (seeds & WORD, seeds >> 32 & WORD))
    parts = []
    for u, v in ((a, b), (c, d)):
        radius = ((u.to(torch.float32) + 0.5) * 2.0**-32).log_().mul_(-2).sqrt_()
        angle = v.to(torch.float32) * (2 * math.pi * 2.0**-32)
        parts += [radius * angle.cos(), radius * angle.sin()]
    return torch.stack(parts, -2).flatten(-3)


class Part(NamedTuple):
    """A box of a larger tensor, whose elements keep their numbers in that: its shape, and where the box starts."""

    whole: Sequence[int]
    offset: Sequence[int]


class Layout:
    """The tiles of a list of tensors, drawn together. ``shapes`` are those of one replica.

    A tensor with a :class:`Part` is a box of a larger one and gets the normals that the larger one has there: tiles
    that the box touches are drawn, and its elements picked.
    """

    def __init__(
        self,
        shapes: Sequence[torch.Size],
        streams: Sequence[int],
        device: torch.device,
        parts: Sequence[Part | None] = (),
    ) -> None:
        self.shapes, self.numbers = shapes, streams
        self.counts = [math.prod(shape) for shape in shapes]
        self.picks: list[Pick] = []
        tiles: list[Tensor] = []
        at = 0
        for shape, part in zip(shapes, parts or [None] * len(shapes), strict=True):
            own, pick = whole_tiles(math.prod(shape)) if part is None else tiles_of(shape, part)
            self.picks.append(pick._replace(at=at, places=None if pick.places is None else pick.places.to(device)))
            tiles.append(own)
            at += TILE * len(own)
        self.tiles = torch.cat(tiles).to(device)
        numbers = [torch.full((len(own),), stream) for own, stream in zip(tiles, streams, strict=True)]
        self.streams = torch.cat(numbers).to(device)

    def draw(self, seeds: Tensor, step: Tensor, draw: int, fill: Callable[..., Tensor] = normals) -> list[Tensor]:
        """One float32 tensor of shape (*R, *shape) for every shape, from one call of ``fill``."""
        flat = fill(self.tiles, self.streams, seeds, step, draw & WORD)
        return [
            pick.of(flat, count).reshape((*seeds.shape, *shape))
            for pick, count, shape in zip(self.picks, self.counts, self.shapes, strict=True)
        ]


class Pick(NamedTuple):
    """Where a tensor's normals are among those that were drawn, from number ``at`` on.

    ``rows`` runs of ``drawn`` numbers each, of which those from ``first`` on are used; or, where runs start anywhere
    in their tiles, the ``places`` of all elements.
    """

    at: int = 0
    rows: int = 1
    drawn: int = 0
    first: int = 0
    places: Tensor | None = None

    def of(self, flat: Tensor, count: int) -> Tensor:
        if self.places is not None:
            return flat[..., self.at :].index_select(-1, self.places)
        if self.rows == 1:
            return flat[..., self.at + self.first : self.at + self.first + count]
        runs = flat[..., self.at : self.at + self.rows * self.drawn]
        runs = runs.reshape(*runs.shape[:-1], self.rows, self.drawn)
        return runs[..., self.first : self.first + count // self.rows]


def whole_tiles(count: int) -> tuple[Tensor, Pick]:
    return torch.arange(-(-count // TILE)), Pick()


def tiles_of(shape: Sequence[int], part: Part) -> tuple[Tensor, Pick]:
    """The tiles that a box of a tensor touches, and where its elements are in them."""
    if not math.prod(shape):
        return torch.arange(0), Pick()
    cut = max((d for d, (n, size) in enumerate(zip(shape, part.whole, strict=True)) if n != size), default=0)
    length = math.prod(shape[cut:])  # of a run of elements that follow each other
    starts = torch.zeros((), dtype=torch.int64)
    for d, (n, first) in enumerate(zip(shape, part.offset, strict=True)):
        stride = math.prod(part.whole[d + 1 :])
        places = first + (torch.arange(n) if d < cut else torch.arange(1))
        starts = starts[..., None] + places * stride
    starts = starts.flatten()
    first = int(starts[0]) % TILE
    if len(starts) == 1 or (length >= RUN and bool((starts % TILE == first).all())):
        tiles = -(-(first + length) // TILE)
        found = starts[:, None] // TILE + torch.arange(tiles)
        return found.flatten(), Pick(rows=len(starts), drawn=TILE * tiles, first=first)
    elements = (starts[:, None] + torch.arange(length)).flatten()
    found, inverse = torch.unique(elements // TILE, return_inverse=True)
    index = inverse * TILE + elements % TILE
    return found, Pick(places=index.to(torch.int32) if len(found) * TILE < 1 << 31 else index)


def uniforms(count: int, seeds: Tensor, step: Tensor, stream: int) -> Tensor:
    """``count`` float64 uniforms on (0, 1) for every seed; ``stream`` separates uses.

    Steps of shape (S, 1, …, 1) give those of several steps at once.
    """
    blocks = torch.arange(-(-count // 2), device=seeds.device).expand(*seeds.shape, -1)
    seeds = seeds.unsqueeze(-1)
    a, b, c, d = philox((step, blocks, torch.full_like(blocks, stream), WORD), (seeds & WORD, seeds >> 32 & WORD))
    pairs = [((high << 20 | low >> 12).to(torch.float64) + 0.5) * 2.0**-52 for high, low in ((a, b), (c, d))]
    return torch.cat(pairs, -1)[..., :count]
