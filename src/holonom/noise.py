"""Normal draws keyed by what they are for, so that a resumed run or another rank draws the same.

A draw depends on (seed, step, draw, parameter, part) and on nothing that was drawn before it. No
global generator is read or moved.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_generators: dict[torch.device, torch.Generator] = {}


def mix(*parts: int) -> int:
    """Hash integers to 64 bits (the finalizer of splitmix64, chained)."""
    state = 0
    for part in parts:
        state = (state + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def normal(shape: torch.Size, dtype: torch.dtype, device: torch.device, *key: int) -> Tensor:
    """Standard normals that depend on the key alone."""
    generator = _generators.get(device)
    if generator is None:
        generator = _generators[device] = torch.Generator(device)
    generator.manual_seed(mix(*key))
    return torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)
