"""Devices whose numbers the host may read in a step, and those that would have to finish all their work first."""

from __future__ import annotations

import torch
from torch import Tensor

HOSTS = {"cpu"}  # tests leave none, so that a CPU takes the way of other devices


def is_host(x: Tensor | torch.device) -> bool:
    """Whether reading a number stalls no device."""
    return (x.device if isinstance(x, Tensor) else x).type in HOSTS
