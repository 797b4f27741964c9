"""SGD with momentum, as PyTorch words its settings."""

from __future__ import annotations

from typing import NamedTuple


class Momentum(NamedTuple):
    lr: float
    momentum: float
    weight_decay: float = 0.0

    def __str__(self) -> str:
        decay = f", WD {self.weight_decay:g}" if self.weight_decay else ""
        return f"SGD-m h={self.lr:g} mom={self.momentum:g}{decay}"
