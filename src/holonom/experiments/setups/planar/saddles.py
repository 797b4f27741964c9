"""Saddle points of a surface on a grid."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# The eight neighbours, counter-clockwise.
_AROUND = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))


def saddles(values: Tensor, threshold: float = 0.0) -> Tensor:
    """(..., G − 2, H − 2): whether each inner point of (..., G, H) values is a saddle.

    Around a saddle, neighbours are higher, lower, higher, lower: the difference to the point
    changes sign four times or more. Differences up to ``threshold`` count as none.
    """
    rows, columns = values.shape[-2:]
    centre = values[..., 1:-1, 1:-1]
    around = torch.stack([values[..., 1 + i : rows - 1 + i, 1 + j : columns - 1 + j] - centre for i, j in _AROUND])
    signs = torch.where(around.abs() <= threshold, 0.0, around.sign())
    last, changes = torch.zeros_like(centre), torch.zeros_like(centre)
    for turn in range(2):  # the first turn only finds the last sign before the second
        for sign in signs:
            changes += turn * (sign * last < 0)
            last = torch.where(sign == 0, last, sign)
    return changes >= 4


def count(found: Tensor) -> int:
    """Number of saddle points: grid points next to each other are the same one."""
    from scipy.ndimage import label

    return int(label(found.numpy(), structure=np.ones((3, 3)))[1])
