"""DCGAN for 28×28 images (Radford et al., 2016), used for images between two digits (thesis 6.2.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LATENT = 100

# Kernel, stride and padding of each layer, by their number: sides 1 → 7 → 14 → 28 or 1 → 2 → 4 → 7 → 14 → 28, and back.
_SHAPES = {
    3: ((7, 1, 0), (4, 2, 1), (4, 2, 1)),
    5: ((2, 1, 0), (4, 2, 1), (3, 2, 1), (4, 2, 1), (4, 2, 1)),
}


class Generator(nn.Module):
    """Pictures from noise: z (N, latent) → (N, channels, 28, 28) in [−1, 1].

    Transposed convolutions with batch norm and ReLU between them, tanh behind; no biases, weights from
    N(0, 0.02²).

    Args:
        latent: length of z.
        width: channels at 14×14; twice as many each time the picture is half as large.
        channels: of the pictures.
        depth: convolutions; five, as the thesis has, or three.
    """

    def __init__(self, latent: int = LATENT, width: int = 64, channels: int = 1, depth: int = 5) -> None:
        super().__init__()
        self.latent = latent
        sizes = (latent, *_widths(width, depth), channels)
        layers: list[nn.Module] = []
        for inputs, outputs, shape in zip(sizes[:-1], sizes[1:], _SHAPES[depth], strict=True):
            layers.append(nn.ConvTranspose2d(inputs, outputs, *shape, bias=False))
            layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-2], nn.Tanh())
        self.apply(_small_normal)

    def forward(self, z: Tensor) -> Tensor:
        pictures: Tensor = self.layers(z[:, :, None, None])
        return pictures


class Discriminator(nn.Module):
    """How real a picture looks: (N, channels, 28, 28) → (N,) logits, positive for "real".

    The generator's mirror image, with strided convolutions and LeakyReLU(0.2); no norm behind the first layer.
    """

    def __init__(self, width: int = 64, channels: int = 1, depth: int = 5) -> None:
        super().__init__()
        sizes = (channels, *reversed(_widths(width, depth)), 1)
        layers: list[nn.Module] = []
        for inputs, outputs, shape in zip(sizes[:-1], sizes[1:], reversed(_SHAPES[depth]), strict=True):
            layers.append(nn.Conv2d(inputs, outputs, *shape, bias=False))
            layers += [nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(layers[0], *layers[2:-2])
        self.apply(_small_normal)

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.layers(pictures)
        return logits.flatten()


def latent_line(first: Tensor, second: Tensor, points: int = 11) -> Tensor:
    """z_α = (1 − α) z_i + α z_j (6.4) at ``points`` values of α from 0 to 1: (..., latent) → (points, ..., latent).

    >>> pictures = generator.eval()(latent_line(z[1], z[3]))
    """
    if points < 2 or first.shape != second.shape:
        raise ValueError(
            f"a line needs two ends of one shape and 2 points, got {first.shape}, {second.shape}, {points}"
        )
    alphas = torch.linspace(0, 1, points, dtype=first.dtype, device=first.device)
    alphas = alphas.reshape(-1, *[1] * first.ndim)
    return (1 - alphas) * first + alphas * second


def _widths(width: int, depth: int) -> list[int]:
    """Channels between the layers, from the smallest picture to the largest."""
    if depth not in _SHAPES:
        raise ValueError(f"depth must be one of {', '.join(map(str, _SHAPES))}, got {depth}")
    return [width * 2**i for i in reversed(range(depth - 1))]


def _small_normal(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
