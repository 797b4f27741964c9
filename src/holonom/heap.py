"""Keeping freed memory at hand."""

from __future__ import annotations

from functools import cache

import torch

_LARGEST = (32 << 20) - (64 << 10)  # bytes; glibc learns nothing from larger blocks


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next one, once a process.

    glibc gives memory back to the system as soon as more than a threshold is free, and a step that asks for a few
    hundred kilobytes many times over then spends half its time on page faults. The threshold is twice the
    largest block that was ever freed (mallopt(3), M_MMAP_THRESHOLD), so that freeing one that was never touched, which
    costs nothing, sets it to 64 MB. Other C libraries take no notice.
    """
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")
