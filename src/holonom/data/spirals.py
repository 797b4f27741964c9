"""Planar spirals: two arms, one a half turn behind the other (thesis, equations 3.32, 4.58, 4.59)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def spirals(
    points: int,
    *,
    turns: float = 2.0,
    scale: float = 1.0,
    power: float = 0.5,
    noise: float = 0.05,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Points of two interleaved spirals and their labels.

    .. math:: x = a t^p \cos(2b t^p π) + c\,N(0, 1), \qquad y = a t^p \sin(2b t^p π) + c\,N(0, 1), \qquad t \sim U(0, 1)

    with the second arm's angle shifted by π (3.32). The defaults, a = 1, b = 2, p = ½, c = 0.05, are
    the paper's Fig. 1 (4.59); (4.58) is turns=4, scale=2, noise=0.02.

    Returns:
        (points, 2) positions and (points,) labels 0.0 or 1.0; half of the points on each arm.
    """
    if points < 2:
        raise ValueError(f"two arms need at least 2 points, got {points}")
    labels = (torch.arange(points) % 2).float()
    radius = torch.rand(points, generator=generator) ** power
    angle = 2 * turns * math.pi * radius + math.pi * labels
    arm = scale * radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    return arm + noise * torch.randn(points, 2, generator=generator), labels
