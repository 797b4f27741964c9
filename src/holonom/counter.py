"""Counter-based normals: every replica draws what it would draw alone, and the device keeps the count.

Philox4x32-10 (Salmon et al., 2011) maps a counter and a key to four random words by ten rounds of
multiplication. The key is a replica's seed; the counter is (step, element, parameter, draw). A
generator object could not give a hundred replicas their own streams in one call, nor be replayed
inside a captured graph: here seeds and step are tensors, so both are arithmetic.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53 - (1 << 32), 0xCD9E8D57 - (1 << 32))
_WEYL = (0x9E3779B9, 0xBB67AE85)

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


def normals(specs: Sequence[Spec], seeds: Tensor, step: Tensor, draw: int) -> list[Tensor]:
    """Standard normals for every spec: leading dimensions of ``seeds`` are replicas, each with its own stream."""
    return [_normal(*spec, seeds, step, draw) for spec in specs]


def _normal(
    shape: torch.Size, dtype: torch.dtype, parameter: int, part: int, seeds: Tensor, step: Tensor, draw: int
) -> Tensor:
    count = math.prod(shape[seeds.ndim :])
    per_block = 2 if dtype == torch.float64 else 4
    words = _words(-(-count // per_block), seeds, step, 2 * parameter + part, draw)
    if dtype == torch.float64:
        pairs = [_box_muller(_unit64(words[0], words[1]), _unit64(words[2], words[3]))]
    else:
        pairs = [_box_muller(_unit32(words[i]), _unit32(words[i + 1])) for i in (0, 2)]
    drawn = torch.cat([x for pair in pairs for x in pair], -1)
    return drawn[..., :count].reshape(shape)


def uniforms(count: int, seeds: Tensor, step: Tensor, stream: int) -> Tensor:
    """``count`` float64 uniforms on (0, 1) for every seed; ``stream`` keeps uses apart."""
    words = _words(-(-count // 2), seeds, step, stream, _WORD)
    return torch.cat([_unit64(words[0], words[1]), _unit64(words[2], words[3])], -1)[..., :count]


def _words(blocks: int, seeds: Tensor, step: Tensor, stream: int, draw: int) -> Words:
    element = torch.arange(blocks, device=seeds.device).expand(*seeds.shape, blocks)
    seeds = seeds.unsqueeze(-1)
    # The element goes where it is not multiplied first: compilers keep an index in 32 bits.
    return philox((step, element, torch.full_like(element, stream), draw & _WORD), (seeds & _WORD, seeds >> 32 & _WORD))


def _unit32(word: Tensor) -> Tensor:
    return (word.to(torch.float32) + 0.5) * 2.0**-32


def _unit64(high: Tensor, low: Tensor) -> Tensor:
    return ((high << 20 | low >> 12).to(torch.float64) + 0.5) * 2.0**-52


def _box_muller(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    radius = torch.sqrt(-2 * torch.log(u))
    return radius * torch.cos(2 * math.pi * v), radius * torch.sin(2 * math.pi * v)


Draw = Callable[[Sequence[Spec], Tensor, Tensor, int], list[Tensor]]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """:func:`normals` or :func:`uniforms` as a compiled pass, ten times faster than the arithmetic word by word."""
    # The compiler counts recompilations per code object; every caller has shapes of its own.
    own = types.FunctionType(function.__code__.replace(), function.__globals__, "draw")
    return torch.compile(own, fullgraph=True, dynamic=False)
