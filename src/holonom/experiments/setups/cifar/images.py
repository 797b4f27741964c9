"""CIFAR-10 on the device; the training set is shuffled, cropped and flipped in every epoch."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ....data import ImageSet
from .recipes import Recipe

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training set's pixels, in [0, 1]
PADDING, CLASSES = 4, 10
_CHUNK = 10_000  # images cropped at once, since their index tensors are large


class CifarImages:
    """Images are stored as bytes: an epoch of 50,000 takes 150 MB.

    Attributes:
        fingerprint: of all pixels and labels.
        test_images, test_labels: bytes (N, 3, 32, 32), and classes.
    """

    def __init__(self, images: ImageSet, device: torch.device, train: int | None = None, test: int | None = None):
        parts = [part[:count] for part, count in zip(images, (train, train, test, test), strict=True)]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part.contiguous().numpy().data)
        self.fingerprint = digest.hexdigest()
        x, y, self.test_images, self.test_labels = (part.to(device) for part in parts)
        self.device = device
        self._padded, self._labels = pad(x, (PADDING,) * 4), y
        self._mean, self._scale = (
            torch.tensor(numbers, device=device).view(3, 1, 1) * 255 for numbers in (MEAN, DEVIATION)
        )

    def __len__(self) -> int:
        """Training images."""
        return len(self._labels)

    def as_input(self, images: Tensor) -> Tensor:
        """Bytes as numbers of mean zero and deviation one."""
        layout = torch.channels_last if images.is_cuda else torch.contiguous_format
        return ((images.float() - self._mean) / self._scale).contiguous(memory_format=layout)

    def labels(self, recipe: Recipe) -> Tensor:
        """Of the recipe's training images."""
        if not recipe.random_labels:
            return self._labels[: recipe.images]
        count = min(recipe.images, len(self))
        return torch.randint(CLASSES, (count,), generator=generator(recipe.seed, "labels")).to(self.device)

    def epoch(self, recipe: Recipe, number: int) -> tuple[Tensor, Tensor]:
        """Bytes (steps, batch, 3, 32, 32) and labels (steps, batch); an incomplete batch is left out.

        The order, the crops (32×32 of the image with 4 black pixels around it) and the flips depend on the
        recipe's seed and the epoch's number alone.
        """
        labels = self.labels(recipe)
        batch = min(recipe.batch, len(labels))
        used = len(labels) // batch * batch
        draw = generator(recipe.seed, "epoch", number)
        order = torch.randperm(len(labels), generator=draw)[:used]
        corner = torch.full((2, used), PADDING)
        mirrored = torch.zeros(used, dtype=torch.bool)
        if recipe.augmented:
            corner = torch.randint(2 * PADDING + 1, (2, used), generator=draw)
            mirrored = torch.rand(used, generator=draw) < 0.5
        chosen = order.to(self.device)
        drawn = (chosen, corner[0].to(self.device), corner[1].to(self.device), mirrored.to(self.device))
        images = torch.cat([self._crop(*part) for part in zip(*(torch.split(x, _CHUNK) for x in drawn), strict=True)])
        if recipe.brightness:  # drawn last: without it the other draws are the same
            factor = 1 + recipe.brightness * (2 * torch.rand(used, 1, 1, 1, generator=draw) - 1)
            images = (images * factor.to(self.device)).round_().clamp_(0, 255).to(images.dtype)
        return images.view(-1, batch, *images.shape[1:]), labels[chosen].view(-1, batch)

    def _crop(self, chosen: Tensor, top: Tensor, left: Tensor, mirrored: Tensor) -> Tensor:
        side = self._padded.shape[-1] - 2 * PADDING
        along = torch.arange(side, device=self.device)
        rows = top[:, None] + along
        columns = left[:, None] + torch.where(mirrored[:, None], along.flip(0), along)
        channels = torch.arange(3, device=self.device)
        cut: Tensor = self._padded[
            chosen[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None, :]
        ]
        return cut


def generator(*words: Any) -> torch.Generator:
    """A separate random stream for every sequence of words and numbers."""
    digest = hashlib.sha256(repr(words).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
