"""VGG-11 for 32×32 images (Simonyan and Zisserman, 2015), with or without batch norm (thesis 6.1.10.6)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

VGG11_WIDTHS = (64, 128, 256, 256, 512, 512, 512, 512, 512, 512)
_CONVOLUTIONS = 8
_POOLED = (0, 1, 3, 5, 7)  # convolutions behind which the resolution halves


def vgg11(
    classes: int = 10,
    batch_norm: bool = True,
    widths: Sequence[int] = VGG11_WIDTHS,
    channels: int = 3,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Eight 3×3 convolutions and three linear layers, ReLU between them: eleven layers of weights.

    Five poolings take 32×32 images to a single point, so the first linear layer has ``widths[7]`` inputs.
    Modules are named ``features`` and ``classifier``; with batch norm, one follows every convolution.
    Convolutions start from N(0, 2/(9·outputs)) with zero biases: with
    torch's default the signal shrinks from layer to layer where no norm restores it.

    Args:
        classes: outputs.
        batch_norm: normalise behind every convolution.
        widths: outputs of layers 1 to 10; Table 6.4 narrows some of them.
        channels: of the images.
        dropout: probability behind each hidden linear layer, in training mode.
    """
    if len(widths) != len(VGG11_WIDTHS) or min(widths) < 1:
        raise ValueError(f"widths must name the outputs of VGG-11's first 10 layers, all positive, got {list(widths)}")
    features: list[nn.Module] = []
    inputs = channels
    for number, width in enumerate(widths[:_CONVOLUTIONS]):
        features.append(_convolution(inputs, width))
        features += [nn.BatchNorm2d(width), nn.ReLU()] if batch_norm else [nn.ReLU()]
        if number in _POOLED:
            features.append(nn.MaxPool2d(2))
        inputs = width
    classifier: list[nn.Module] = [nn.Flatten()]
    for width in widths[_CONVOLUTIONS:]:
        classifier += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout)]
        inputs = width
    classifier.append(nn.Linear(inputs, classes))
    model = nn.Sequential()
    model.add_module("features", nn.Sequential(*features))
    model.add_module("classifier", nn.Sequential(*classifier))
    return model


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
