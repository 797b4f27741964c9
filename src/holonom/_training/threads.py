"""How many threads a loop of small operations uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

WORTH_THREADS = 100_000  # parameters of all replicas together


@contextmanager
def few_threads(parameters: Iterable[Tensor]) -> Iterator[int]:
    """One thread for small ensembles: a second gains nothing and, on a busy machine, is waited for at every step.

    Says how many there are.
    """
    before = torch.get_num_threads()
    if sum(p.numel() for p in parameters) < WORTH_THREADS:
        torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)
