"""Residual networks for small images (He et al., 2016): thesis 5.4 fine-tunes a ResNet-34."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import relu


class ResNet(nn.Module):
    """Stem, four (or fewer) stages of residual blocks, global mean, linear classifier.

    The stem is a 3×3 convolution without pooling, for images of about 32×32. Every stage but the first
    halves the resolution. Modules are named ``stem``, ``stages.0`` … and ``head``:

    >>> model = resnet34(classes=10)
    >>> groups = [{"params": model.head.parameters()},
    ...           {"params": [*model.stem.parameters(), *model.stages.parameters()], "every": 5}]

    Args:
        blocks: residual blocks in every stage.
        widths: channels of every stage.
        classes: outputs.
        channels: of the images.
    """

    def __init__(
        self, blocks: Sequence[int], widths: Sequence[int] = (64, 128, 256, 512), classes: int = 10, channels: int = 3
    ) -> None:
        super().__init__()
        if len(blocks) != len(widths) or not blocks:
            raise ValueError(f"blocks and widths must name the same stages, got {list(blocks)} and {list(widths)}")
        self.stem = nn.Sequential(_convolution(channels, widths[0]), nn.BatchNorm2d(widths[0]), nn.ReLU())
        stages: list[nn.Module] = []
        inputs = widths[0]
        for number, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            first = ResidualBlock(inputs, width, stride=2 if number else 1)
            stages.append(nn.Sequential(first, *(ResidualBlock(width, width) for _ in range(count - 1))))
            inputs = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, height, width) → (N, classes)."""
        logits: Tensor = self.head(self.stages(self.stem(x)).mean((2, 3)))
        return logits


class ResidualBlock(nn.Module):
    """relu(x′ + norm(conv(relu(norm(conv(x)))))), x′ being x, or its projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _convolution(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            _convolution(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_convolution(inputs, outputs, stride, 1), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.shortcut(x) + self.branch(x))


def resnet18(classes: int = 10, channels: int = 3) -> ResNet:
    return ResNet((2, 2, 2, 2), classes=classes, channels=channels)


def resnet34(classes: int = 10, channels: int = 3) -> ResNet:
    return ResNet((3, 4, 6, 3), classes=classes, channels=channels)


def tiny_resnet(classes: int = 10, channels: int = 1, width: int = 8) -> ResNet:
    """Three stages of one block each: trains in seconds."""
    return ResNet((1, 1, 1), (width, 2 * width, 4 * width), classes, channels)


def _convolution(inputs: int, outputs: int, stride: int = 1, size: int = 3) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
