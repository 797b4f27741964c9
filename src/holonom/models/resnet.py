"""Residual networks for small images (He et al., 2016): thesis 5.4 fine-tunes a ResNet-34, 6.1 trains 18, 34 and 50."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import relu

EXPANSION = 4  # a bottleneck's output over its width


class ResNet(nn.Module):
    """Stem, four (or fewer) stages of residual blocks, global mean, linear classifier.

    The stem is a 3×3 convolution, for images of about 32×32. Every stage but the first
    halves the resolution. Modules are named ``stem``, ``stages.0`` … and ``head``:

    >>> model = resnet34(classes=10)
    >>> groups = [{"params": model.head.parameters()},
    ...           {"params": [*model.stem.parameters(), *model.stages.parameters()], "every": 5}]

    Args:
        blocks: residual blocks in every stage.
        widths: channels of every stage; a bottleneck's output has four times as many.
        classes: outputs.
        channels: of the images.
        bottleneck: three convolutions to a block instead of two, as in ResNet-50.
        pool: halve the resolution behind the stem, as the networks for large images do: about four times cheaper.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        widths: Sequence[int] = (64, 128, 256, 512),
        classes: int = 10,
        channels: int = 3,
        bottleneck: bool = False,
        pool: bool = False,
    ) -> None:
        super().__init__()
        if len(blocks) != len(widths) or not blocks:
            raise ValueError(f"blocks and widths must name the same stages, got {list(blocks)} and {list(widths)}")
        self.stem = nn.Sequential(_convolution(channels, widths[0]), nn.BatchNorm2d(widths[0]), nn.ReLU())
        if pool:
            self.stem.append(nn.MaxPool2d(3, stride=2, padding=1))
        stages: list[nn.Module] = []
        inputs = widths[0]
        for number, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            outputs, neck = (EXPANSION * width, width) if bottleneck else (width, None)
            first = ResidualBlock(inputs, outputs, 2 if number else 1, neck)
            stages.append(nn.Sequential(first, *(ResidualBlock(outputs, outputs, 1, neck) for _ in range(count - 1))))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, height, width) → (N, classes)."""
        logits: Tensor = self.head(self.stages(self.stem(x)).mean((2, 3)))
        return logits


class ResidualBlock(nn.Module):
    """relu(x′ + branch(x)), x′ being x, or its projection where the shape changes.

    The branch is norm(conv(relu(norm(conv(x))))) with 3×3 convolutions; with a ``neck`` a 1×1 convolution narrows
    to so many channels, one of 3×3 works there, and another of 1×1 widens again.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1, neck: int | None = None) -> None:
        super().__init__()
        if neck is None:
            layers = [_convolution(inputs, outputs, stride), _convolution(outputs, outputs)]
        else:
            layers = [
                _convolution(inputs, neck, size=1),
                _convolution(neck, neck, stride),
                _convolution(neck, outputs, size=1),
            ]
        self.branch = nn.Sequential()
        for layer in layers:
            self.branch.extend([nn.ReLU()] if len(self.branch) else [])
            self.branch.extend([layer, nn.BatchNorm2d(layer.out_channels)])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_convolution(inputs, outputs, stride, 1), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.shortcut(x) + self.branch(x))


def resnet18(classes: int = 10, channels: int = 3, width: int = 64, pool: bool = False) -> ResNet:
    """Two blocks a stage; ``width`` is that of the first."""
    return ResNet((2, 2, 2, 2), _doubling(width), classes, channels, pool=pool)


def resnet34(classes: int = 10, channels: int = 3, width: int = 64, pool: bool = False) -> ResNet:
    """Three, four, six and three blocks; ``width`` is that of the first stage."""
    return ResNet((3, 4, 6, 3), _doubling(width), classes, channels, pool=pool)


def resnet50(classes: int = 10, channels: int = 3, width: int = 64, pool: bool = False) -> ResNet:
    """ResNet-34's blocks as bottlenecks."""
    return ResNet((3, 4, 6, 3), _doubling(width), classes, channels, bottleneck=True, pool=pool)


def tiny_resnet(classes: int = 10, channels: int = 1, width: int = 8) -> ResNet:
    """Three stages of one block each: trains in seconds."""
    return ResNet((1, 1, 1), (width, 2 * width, 4 * width), classes, channels)


def _doubling(width: int) -> tuple[int, ...]:
    return (width, 2 * width, 4 * width, 8 * width)


def _convolution(inputs: int, outputs: int, stride: int = 1, size: int = 3) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
