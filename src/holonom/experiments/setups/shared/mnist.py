"""MNIST's pixels as networks see them."""

from __future__ import annotations

from torch import Tensor

PIXEL_MEAN, PIXEL_DEVIATION = 0.1307, 0.3081  # of the training set, with pixels in [0, 1]


def normalised(pixels: Tensor) -> Tensor:
    """Pixels in [0, 1] centred and scaled."""
    return (pixels - PIXEL_MEAN) / PIXEL_DEVIATION
