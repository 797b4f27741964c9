"""Normal draws keyed by what they are for, so that a resumed run or another rank draws the same.

A draw depends on (seed, step, draw, parameter, part) and on nothing that was drawn before it. No
global generator is read or moved.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
CHUNK = 1 << 17  # normals a host thread draws at a time; part of the key, so it never depends on the machine
_generators: dict[torch.device, torch.Generator] = {}
_threads: ThreadPoolExecutor | None = None


def _forget_threads() -> None:
    """A forked process inherits the pool, but none of its threads."""
    global _threads
    _threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


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
    out = torch.empty(shape, dtype=dtype, device=device)
    if device.type == "cpu" and out.numel() > CHUNK:
        _fill_in_chunks(out.view(-1), key)
        return out
    generator = _generators.get(device)
    if generator is None:
        generator = _generators[device] = torch.Generator(device)
    generator.manual_seed(mix(*key))
    return out.normal_(generator=generator)


def _fill_in_chunks(out: Tensor, key: tuple[int, ...]) -> None:
    """torch draws on one thread; drawing is most of a noisy step, and chunks with their own keys share it out."""
    global _threads

    def fill(numbered: tuple[int, Tensor]) -> None:
        number, chunk = numbered
        generator = torch.Generator()
        generator.manual_seed(mix(*key, number))
        chunk.normal_(generator=generator)

    if _threads is None:
        _threads = ThreadPoolExecutor(max(1, torch.get_num_threads()), thread_name_prefix="holonom-noise")
    list(_threads.map(fill, enumerate(torch.split(out, CHUNK))))
