"""Planar trigonometric data: a cosine against a sine (thesis, equation 3.33)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def trigonometric(
    points: int,
    *,
    length: float = 6.0,
    frequency: float = 1.0,
    noise: float = 0.02,
    per_unit_length: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Points on two crossing waves and their labels.

    .. math:: x_1 = a t, \qquad x_2 = \cos(b t π) + c\,N(0, 1), \qquad t \sim U(0, 1)

    for class 0, and the same with a sine for class 1 (3.33); a is ``length``, b ``frequency`` and
    c ``noise``. As printed, a only stretches the picture and the curves cross about b times, yet the
    thesis says that a = 10 "exhibits more crossings" than a = 6 (Fig. 3.11, 3.12). That is true of
    cos(b x₁ π), which ``per_unit_length`` chooses: b half waves per unit of x₁, a·b in all.

    Returns:
        (points, 2) positions and (points,) labels 0.0 or 1.0; half of the points on each curve.
    """
    if points < 2:
        raise ValueError(f"two curves need at least 2 points, got {points}")
    labels = (torch.arange(points) % 2).float()
    time = torch.rand(points, generator=generator)
    phase = math.pi * frequency * time * (length if per_unit_length else 1.0)
    height = torch.where(labels == 0, phase.cos(), phase.sin()) + noise * torch.randn(points, generator=generator)
    return torch.stack([length * time, height], 1), labels
