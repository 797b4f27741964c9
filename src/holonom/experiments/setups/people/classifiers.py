"""MNIST and the classifiers of thesis 6.2: three perceptrons, three CNNs and three vision transformers."""

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
from ..shared.mnist import PIXEL_DEVIATION, PIXEL_MEAN, normalised

CHUNK = 10_000  # images times members at once
_MAX_SHIFT = 2  # pixels


@dataclass(frozen=True)
class Digits:
    """Normalised images (N, 1, 28, 28) and labels, on the run's device."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    fingerprint: str


class Training(NamedTuple):
    """How one network is trained: by AdamW, which without weight decay is Adam."""

    kind: str
    lr: float = 5e-4
    batch: int = 128
    weight_decay: float = 0.0
    shifts: bool = False


NETWORKS = {
    "MLP1": Training("MLP"),
    "MLP2": Training("MLP", weight_decay=1e-5),
    "MLP3": Training("MLP", lr=1e-3, batch=256, weight_decay=1e-5),
    "CNN1": Training("CNN"),
    "CNN2": Training("CNN", weight_decay=1e-5),
    "CNN3": Training("CNN", shifts=True),
    "ViT1": Training("ViT"),
    "ViT2": Training("ViT", weight_decay=1e-5),
    "ViT3": Training("ViT", weight_decay=5e-5),
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


def network(kind: str, settings: SimpleNamespace) -> Callable[[], nn.Module]:
    """One of the three architectures of thesis 6.2.6.1, at the scale's size."""
    if kind == "MLP":
        return lambda: nn.Sequential(nn.Flatten(), *mlp([784, settings.mlp_width, settings.mlp_width, 10]))
    if kind == "CNN":
        narrow, wide = settings.cnn_width, 2 * settings.cnn_width
        return partial(cnn, widths=(narrow, narrow, wide, wide))
    return partial(VisionTransformer, blocks=settings.vit_blocks)


def chunks(x: Tensor, members: int = 1) -> list[Tensor]:
    """The images in chunks, since the outputs of many members are large."""
    size = max(1, CHUNK // members)
    return [x[start : start + size] for start in range(0, len(x), size)]


@torch.no_grad()
def probabilities(ensemble: Ensemble, x: Tensor) -> Tensor:
    """(R, N, 10) of all members; leaves the ensemble in eval mode."""
    ensemble.eval()
    return torch.cat([ensemble(part).softmax(-1) for part in chunks(x, ensemble.replicas)], 1)


@torch.no_grad()
def accuracy(ensemble: Ensemble, x: Tensor, y: Tensor) -> Tensor:
    """(R,); leaves the ensemble in eval mode."""
    ensemble.eval()
    members = ensemble.replicas
    pairs = zip(chunks(x, members), chunks(y, members), strict=True)
    hits = [(ensemble(images).argmax(-1) == labels).sum(1) for images, labels in pairs]
    return torch.stack(hits).sum(0) / len(y)


class Shifted(Shuffled):
    """Images shifted at random by up to two pixels in both directions; black comes in at the edge."""

    def take(self, index: Tensor) -> tuple[Tensor, ...]:
        images, labels = super().take(index)
        return shifted(images), labels


def shifted(images: Tensor) -> Tensor:
    """(…, 1, height, width), each image shifted by another whole number of pixels."""
    *lead, height, width = images.shape
    black = -PIXEL_MEAN / PIXEL_DEVIATION
    flat = nn.functional.pad(images.reshape(-1, height, width), (_MAX_SHIFT,) * 4, value=black)
    moves = torch.randint(0, 2 * _MAX_SHIFT + 1, (2, len(flat), 1), device=images.device)
    rows, columns = (
        torch.arange(n, device=images.device) + move for n, move in zip((height, width), moves, strict=True)
    )
    every = torch.arange(len(flat), device=images.device)[:, None, None]
    return flat[every, rows[:, :, None], columns[:, None, :]].reshape(*lead, height, width)
