"""DCGAN for 28×28 images (Radford et al., 2016): digits between digits (thesis 6.2.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LATENT = 100
_SIDE = 7  # of the smallest picture inside


class Generator(nn.Module):
    """Pictures from noise: z (N, latent) → (N, channels, 28, 28) in [−1, 1].

    Transposed convolutions 1 → 7 → 14 → 28 with batch norm and ReLU between them, tanh behind; no biases, weights
    from N(0, 0.02²).

    Args:
        latent: length of z.
        width: channels at 14×14; twice as many at 7×7.
        channels: of the pictures.
    """

    def __init__(self, latent: int = LATENT, width: int = 64, channels: int = 1) -> None:
        super().__init__()
        self.latent = latent
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(latent, 2 * width, _SIDE, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1, bias=False),
            nn.Tanh(),
        )
        self.apply(_small_normal)

    def forward(self, z: Tensor) -> Tensor:
        pictures: Tensor = self.layers(z[:, :, None, None])
        return pictures


class Discriminator(nn.Module):
    """How real a picture looks: (N, channels, 28, 28) → (N,) logits, positive for "real".

    The generator's mirror image, with strided convolutions and LeakyReLU(0.2); no norm behind the first layer.
    """

    def __init__(self, width: int = 64, channels: int = 1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 4, stride=2, padding=1, bias=False),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, _SIDE, bias=False),
        )
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


def _small_normal(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
