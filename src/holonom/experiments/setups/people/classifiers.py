"""MNIST as the networks of thesis 6.2 see it, and the networks: three perceptrons, CNNs and vision transformers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ....batches import Shuffled
from ....data import mnist
from ....ensemble import Ensemble
from ....models import VisionTransformer, cnn, mlp
from ...run import Run
from ..perceptrons.tasks import PIXEL_DEVIATION, PIXEL_MEAN

CHUNK = 10_000  # images times members at once
_FARTHEST = 2  # pixels, of a shifted image


@dataclass(frozen=True)
class Digits:
    """Normalised images (N, 1, 28, 28) and labels, on the run's device."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    fingerprint: str


class Reader(NamedTuple):
    """How one network is trained: AdamW, which without weight decay is Adam."""

    kind: str
    lr: float = 5e-4
    batch: int = 128
    weight_decay: float = 0.0
    shifts: bool = False


READERS = {
    "MLP1": Reader("MLP"),
    "MLP2": Reader("MLP", weight_decay=1e-5),
    "MLP3": Reader("MLP", lr=1e-3, batch=256, weight_decay=1e-5),
    "CNN1": Reader("CNN"),
    "CNN2": Reader("CNN", weight_decay=1e-5),
    "CNN3": Reader("CNN", shifts=True),
    "ViT1": Reader("ViT"),
    "ViT2": Reader("ViT", weight_decay=1e-5),
    "ViT3": Reader("ViT", weight_decay=5e-5),
}


def load(run: Run, train: int | None, test: int | None) -> Digits:
    """The first ``train`` and ``test`` images; None takes all."""
    raw = mnist(run.root)
    parts = raw.train_images[:train], raw.train_labels[:train], raw.test_images[:test], raw.test_labels[:test]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.numpy().tobytes())
    x, y, x_test, y_test = (part.to(run.device) for part in parts)
    inputs = [normalised(images[:, None].float() / 255) for images in (x, x_test)]
    return Digits(inputs[0], y, inputs[1], y_test, digest.hexdigest())


def normalised(pixels: Tensor) -> Tensor:
    """Pixels in [0, 1] as networks see them."""
    return (pixels - PIXEL_MEAN) / PIXEL_DEVIATION


def network(kind: str, settings: SimpleNamespace) -> Callable[[], nn.Module]:
    """One of the three architectures of thesis 6.2.6.1, at the scale's size."""
    if kind == "MLP":
        return lambda: nn.Sequential(nn.Flatten(), *mlp([784, settings.mlp_width, settings.mlp_width, 10]))
    if kind == "CNN":
        narrow, wide = settings.cnn_width, 2 * settings.cnn_width
        return partial(cnn, widths=(narrow, narrow, wide, wide))
    return partial(VisionTransformer, blocks=settings.vit_blocks)


def parts(x: Tensor, members: int = 1) -> list[Tensor]:
    """A part of the images at a time: what many members make of all of them is large."""
    size = max(1, CHUNK // members)
    return [x[start : start + size] for start in range(0, len(x), size)]


@torch.no_grad()
def probabilities(ensemble: Ensemble, x: Tensor) -> Tensor:
    """(R, N, 10) of all members in eval mode, which they are left in."""
    ensemble.eval()
    return torch.cat([ensemble(part).softmax(-1) for part in parts(x, ensemble.replicas)], 1)


@torch.no_grad()
def accuracy(ensemble: Ensemble, x: Tensor, y: Tensor) -> Tensor:
    """(R,) in eval mode."""
    ensemble.eval()
    members = ensemble.replicas
    pairs = zip(parts(x, members), parts(y, members), strict=True)
    hits = [(ensemble(part).argmax(-1) == own).sum(1) for part, own in pairs]
    return torch.stack(hits).sum(0) / len(y)


class Shifted(Shuffled):
    """Images moved by up to two pixels in both directions, another way each time; black comes in at the edge."""

    def take(self, index: Tensor) -> tuple[Tensor, ...]:
        images, labels = super().take(index)
        return shifted(images), labels


def shifted(images: Tensor) -> Tensor:
    """(…, 1, height, width), each by its own whole number of pixels."""
    *lead, height, width = images.shape
    black = -PIXEL_MEAN / PIXEL_DEVIATION
    flat = nn.functional.pad(images.reshape(-1, height, width), (_FARTHEST,) * 4, value=black)
    moves = torch.randint(0, 2 * _FARTHEST + 1, (2, len(flat), 1), device=images.device)
    rows, columns = (
        torch.arange(n, device=images.device) + move for n, move in zip((height, width), moves, strict=True)
    )
    every = torch.arange(len(flat), device=images.device)[:, None, None]
    return flat[every, rows[:, :, None], columns[:, None, :]].reshape(*lead, height, width)
