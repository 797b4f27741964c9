"""A tiny set of random images, and a recipe for them."""

from __future__ import annotations

import torch

from holonom.data import ImageSet
from holonom.experiments.setups.cifar.recipes import Recipe

CPU = torch.device("cpu")
SMALL = Recipe(width=2, pool=True, images=24, epochs=3, batch=8, seed=5)


def image_set(train: int = 24, test: int = 10, seed: int = 0) -> ImageSet:
    draw = torch.Generator().manual_seed(seed)
    parts = []
    for count in (train, test):
        parts.append(torch.randint(256, (count, 3, 32, 32), generator=draw, dtype=torch.uint8))
        parts.append(torch.randint(10, (count,), generator=draw))
    return ImageSet(*parts)
