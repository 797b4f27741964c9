"""Small parts that set-ups of several optimizers share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Momentum(NamedTuple):
    """Settings of SGD with momentum, with PyTorch's meaning; "annealed" lowers lr along a cosine."""

    lr: float
    momentum: float
    weight_decay: float = 0.0
    annealed: bool = False

    def __str__(self) -> str:
        decay = f", WD {self.weight_decay:g}" if self.weight_decay else ""
        return f"SGD-m h={self.lr:g}{'↓' if self.annealed else ''} mom={self.momentum:g}{decay}"


@contextmanager
def initial_projection() -> Iterator[None]:
    """No warning where an optimizer moves initial weights onto their manifold, since that is part of the set-up."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="weights that did not satisfy their constraint")
        yield


@contextmanager
def published_word() -> Iterator[None]:
    """No warning where a word's positions are off its temperature, since the word is the published method's."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* samples positions at .* the temperature")
        yield
