"""A convolutional network for 28×28 images (thesis 6.2.6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

_SIDE = 7  # of a 28×28 image after two poolings


def cnn(
    classes: int = 10,
    widths: Sequence[int] = (32, 32, 64, 64),
    hidden: Sequence[int] = (256, 128),
    channels: int = 1,
    dropout: float = 0.4,
) -> nn.Sequential:
    """Four 3×3 convolutions and three linear layers, the MNIST network of Tables 6.6 to 6.8.

    ReLU everywhere, batch norm behind every convolution, max pooling behind each pair of them, and
    dropout behind the middle linear layer. Widths are not in the thesis.

    Args:
        classes: outputs.
        widths: channels of the four convolutions.
        hidden: outputs of the first two linear layers.
        channels: of the images.
        dropout: probability, in training mode.
    """
    if len(widths) != 4 or len(hidden) != 2 or min(*widths, *hidden) < 1:
        raise ValueError(f"give four widths and two hidden sizes, all positive, got {list(widths)} and {list(hidden)}")
    features: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise((channels, *widths))):
        features += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        if number % 2:
            features.append(nn.MaxPool2d(2))
    first, middle = hidden
    model = nn.Sequential()
    model.add_module("features", nn.Sequential(*features))
    model.add_module(
        "classifier",
        nn.Sequential(
            nn.Flatten(),
            nn.Linear(widths[-1] * _SIDE * _SIDE, first),
            nn.ReLU(),
            nn.Linear(first, middle),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(middle, classes),
        ),
    )
    return model
