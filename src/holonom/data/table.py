"""Tables of categorical attributes with a class per row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot


class Table(NamedTuple):
    """Categorical attributes and labels.

    Attributes:
        attributes: (N, k) int64, column j counting from 0 to ``levels[j]`` − 1.
        labels: (N,) int64.
        levels: how many values each attribute may take.
    """

    attributes: Tensor
    labels: Tensor
    levels: tuple[int, ...]

    def numbers(self) -> Tensor:
        """(N, k) float inputs, one number per attribute, from −1 (its first value) to 1 (its last)."""
        return 2 * self.attributes / (torch.tensor(self.levels) - 1) - 1

    def one_hot(self) -> Tensor:
        """(N, Σ levels) float inputs, one 0/1 entry per value of an attribute."""
        columns = [one_hot(column, levels) for column, levels in zip(self.attributes.T, self.levels, strict=True)]
        return torch.cat(columns, 1).float()
