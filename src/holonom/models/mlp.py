"""Multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn


def mlp(sizes: Sequence[int], activation: Callable[[], nn.Module] = nn.ReLU, bias: bool = True) -> nn.Sequential:
    """Linear layers of the given widths with an activation between them, none behind the last.

    ``mlp([2, 100, 100, 1])`` has two hidden layers; Σ (nᵢ₋₁ + 1) nᵢ parameters.
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"sizes must name at least an input and an output width, all positive, got {list(sizes)}")
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias=bias), activation()]
    return nn.Sequential(*layers[:-1])


def shlp(
    inputs: int, hidden: int, outputs: int, activation: Callable[[], nn.Module] = nn.ReLU, bias: bool = True
) -> nn.Sequential:
    """A single-hidden-layer perceptron, the network of most of the papers' experiments."""
    return mlp([inputs, hidden, outputs], activation, bias)
