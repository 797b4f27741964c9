"""Planar data besides the papers': a disc inside a ring, and four quadrants."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def circles(
    points: int,
    *,
    inner: float = 0.4,
    scale: float = 1.0,
    noise: float = 0.05,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Points of two concentric circles and their labels.

    .. math:: x = aρ\,(\cos φ, \sin φ) + c\,N(0, I), \qquad φ \sim U(0, 2π)

    with ρ = 1 for class 0 and ρ = ``inner`` for class 1; a is ``scale`` and c ``noise``.

    Returns:
        (points, 2) positions and (points,) labels 0.0 or 1.0; half of the points on each circle.
    """
    if points < 2:
        raise ValueError(f"two circles need at least 2 points, got {points}")
    labels = (torch.arange(points) % 2).float()
    angle = 2 * math.pi * torch.rand(points, generator=generator)
    radius = torch.where(labels == 1, inner, 1.0)
    ring = scale * radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    return ring + noise * torch.randn(points, 2, generator=generator), labels


def xor(
    points: int, *, scale: float = 1.0, noise: float = 0.05, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    r"""Points of a square and whether their coordinates have different signs.

    .. math:: x \sim U(-a, a)^2, \qquad \text{class 1 where } x_1 x_2 < 0, \qquad \text{then } x + c\,N(0, I)

    a is ``scale`` and c ``noise``, which moves points across the axes.

    Returns:
        (points, 2) positions and (points,) labels 0.0 or 1.0, of about equal number.
    """
    if points < 2:
        raise ValueError(f"two classes need at least 2 points, got {points}")
    square = scale * (2 * torch.rand(points, 2, generator=generator) - 1)
    labels = (square[:, 0] * square[:, 1] < 0).float()
    return square + noise * torch.randn(points, 2, generator=generator), labels
