"""Counter-based normals: every replica draws what it would draw alone, and the device keeps the count.

Philox4x32-10 (Salmon et al., 2011) maps a counter and a key to four random words by ten rounds of
multiplication. The key is a replica's seed; the counter is (step, element, parameter, draw). A
generator object could not give a hundred replicas their own streams in one call, nor be replayed
inside a captured graph: here seeds and step are tensors, so both are arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .compiling import attempted, own
from .trigonometry import cosines, sines

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53 - (1 << 32), 0xCD9E8D57 - (1 << 32))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LARGE = 1 << 17  # normals
# How to compile draws. Wherever a compiler uses a result it writes its operations out again, up to so many of them.
# Philox uses every word several times a round: thousands of operations would come of two hundred.
OPTIONS: dict[str, Any] = {"realize_opcount_threshold": 8}

Spec = tuple[torch.Size, torch.dtype, int, int]  # one tensor to draw: its shape, dtype, parameter and part
Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> Words:
    """Four 32-bit words, as int64, for every counter and key (any shapes that broadcast)."""
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        # x·M = x·2³² + x·(M − 2³²): the second product fits into 63 bits. The first one would not, and
        # signed overflow is something compilers assume never to happen.
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> 32) + c ^ b ^ k, second & _WORD, (first >> 32) + a ^ d ^ m, first & _WORD
        k, m = (k + _WEYL[0]) & _WORD, (m + _WEYL[1]) & _WORD
    return a, b, c, d


class Normals:
    """Standard normals for a list of tensors, drawn in one pass.

    Leading dimensions of the seeds are replicas, each with a stream of its own; a tensor's draw depends
    on its own spec only, not on what else is in the list.
    """

    def __init__(self, specs: Sequence[Spec], replica_dims: int, device: torch.device) -> None:
        self.specs = specs
        self.replica_dims = replica_dims
        self.counts = [math.prod(shape[replica_dims:]) for shape, *_ in specs]
        self.tables = {}  # dtype → which element of which parameter a block of words is for
        for dtype in {spec[1] for spec in specs}:
            own = [(self._blocks(i), 2 * spec[2] + spec[3]) for i, spec in enumerate(specs) if spec[1] == dtype]
            elements = torch.cat([torch.arange(blocks) for blocks, _ in own])
            streams = torch.cat([torch.full((blocks,), stream) for blocks, stream in own])
            self.tables[dtype] = (elements.to(device), streams.to(device))

    def _blocks(self, i: int) -> int:
        return -(-self.counts[i] // (2 if self.specs[i][1] == torch.float64 else 4))

    def __call__(self, seeds: Tensor, step: Tensor, draw: int) -> list[Tensor]:
        planes: dict[torch.dtype, tuple[Tensor, ...]] = {}
        if not torch.compiler.is_compiling() or sum(self.counts) * seeds.numel() < _LARGE:
            planes = {dtype: _planes(dtype, *table, seeds, step, draw) for dtype, table in self.tables.items()}
        begin = dict.fromkeys(self.tables, 0)
        drawn = []
        for i, (shape, dtype, *_) in enumerate(self.specs):
            own = slice(begin[dtype], begin[dtype] + self._blocks(i))
            if planes:
                parts = [plane[..., own] for plane in planes[dtype]]
            else:
                # Compiled tensor by tensor, planes are written to where they belong instead of copied there; the
                # generator is then compiled as often as there are tensors, which small draws do not repay.
                elements, streams = self.tables[dtype]
                parts = list(_planes(dtype, elements[own], streams[own], seeds, step, draw))
            drawn.append(torch.cat(parts, -1)[..., : self.counts[i]].reshape(shape))
            begin[dtype] = own.stop
        return drawn


def _planes(
    dtype: torch.dtype, elements: Tensor, streams: Tensor, seeds: Tensor, step: Tensor, draw: int
) -> tuple[Tensor, ...]:
    a, b, c, d = _words(elements, streams, seeds, step, draw)
    if dtype == torch.float64:
        return _box_muller(_unit64(a, b), _unit64(c, d))
    return *_box_muller(_unit32(a), _unit32(b)), *_box_muller(_unit32(c), _unit32(d))


def uniforms(count: int, seeds: Tensor, step: Tensor, stream: int) -> Tensor:
    """``count`` float64 uniforms on (0, 1) for every seed; ``stream`` keeps uses apart.

    Steps of shape (S, 1, …, 1) give those of several steps at once.
    """
    elements = torch.arange(-(-count // 2), device=seeds.device)
    a, b, c, d = _words(elements, torch.full_like(elements, stream), seeds, step, _WORD)
    return torch.cat([_unit64(a, b), _unit64(c, d)], -1)[..., :count]


def _words(elements: Tensor, streams: Tensor, seeds: Tensor, step: Tensor, draw: int) -> Words:
    elements = elements.expand(*seeds.shape, -1)
    seeds = seeds.unsqueeze(-1)
    # The element goes where it is not multiplied first: compilers keep an index in 32 bits.
    return philox((step, elements, streams, draw & _WORD), (seeds & _WORD, seeds >> 32 & _WORD))


def _unit32(word: Tensor) -> Tensor:
    return (word.to(torch.float32) + 0.5) * 2.0**-32


def _unit64(high: Tensor, low: Tensor) -> Tensor:
    return ((high << 20 | low >> 12).to(torch.float64) + 0.5) * 2.0**-52


def _box_muller(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Two normals from two uniforms: √(−2 ln u) times cosine and sine of 2πv, turned by half a turn."""
    radius = torch.sqrt(-2 * torch.log(u))
    angle = v - 0.5
    return radius * cosines([angle])[0], radius * sines([angle])[0]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled pass of its own, ten times faster than the arithmetic word by word."""
    # Every caller has shapes of its own.
    return attempted(torch.compile(own(function, "draw"), fullgraph=True, dynamic=False, options=OPTIONS), function)
