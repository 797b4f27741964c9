"""A ResNet-18 on CIFAR-10: its data, one training."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from ...._random import mix
from ....data import ImageSet, cifar10
from ...run import Array, Run
from ..cifar.images import CifarImages
from ..cifar.networks import untrained
from ..cifar.recipes import Recipe
from ..transfer.finetuning import check_split, half_precision
from .comparison import Make, marks, schedule

CHANCE = 0.9  # the error of ten classes
_CHUNK = 1000  # images evaluated at once


@dataclass(frozen=True)
class Length:
    """Of a network and its training; the rate rises during the first of 30 epochs, in proportion."""

    width: int
    epochs: int
    batch: int


class Pictures:
    """CIFAR-10 on the run's device, the last ``held_out`` of the training images as validation data."""

    def __init__(self, run: Run, settings: SimpleNamespace) -> None:
        self.run = run
        x, y, *test = cifar10(run.root)
        check_split(settings.train, settings.held_out, len(y))
        parts = x[: settings.train], y[: settings.train], *(part[: settings.test] for part in test)
        self.data = CifarImages(ImageSet(*parts), run.device)
        self.valid = x[-settings.held_out :].to(run.device), y[-settings.held_out :].to(run.device)

    def train(self, title: str, make: Make, size: Length, replica: int, tests: bool) -> Array:
        """Errors, as shares: on held-out images during training, and last on the test images or NaN."""
        seed = mix(self.run.seed, replica) >> 1
        recipe = Recipe(width=size.width, images=len(self.data), epochs=size.epochs, batch=size.batch, seed=seed)
        model = untrained(recipe).to(self.run.device)
        optimizer = make(model)
        steps = recipe.per_epoch * size.epochs
        scheduler = LambdaLR(optimizer, lambda step: schedule(step, steps, steps // 30))
        errors, step = [], 0
        with self.run.progress(title, steps) as progress:
            for epoch in range(size.epochs):
                for x, y in zip(*self.data.epoch(recipe, epoch), strict=True):
                    optimizer.zero_grad()
                    torch.autograd.backward(cross_entropy(self._logits(model, x), y))
                    optimizer.step()
                    scheduler.step()
                    step += 1
                    errors += [self._error(model, *self.valid)] * marks(steps).count(step)
                    progress(step, steps, None)
        last = self._error(model, self.data.test_images, self.data.test_labels) if tests else np.nan
        return np.array([*errors, last])

    def _logits(self, model: nn.Module, images: Tensor) -> Tensor:
        with half_precision(self.run.device, True):
            logits: Tensor = model(self.data.as_input(images))
        return logits.float()

    @torch.no_grad()
    def _error(self, model: nn.Module, images: Tensor, labels: Tensor) -> float:
        """The share of images in a wrong class; NaN where outputs are not finite."""
        model.eval()
        parts = zip(torch.split(images, _CHUNK), torch.split(labels, _CHUNK), strict=True)
        wrong = torch.zeros((), dtype=torch.float64, device=images.device)
        for x, y in parts:
            logits = self._logits(model, x)
            missed = (logits.argmax(1) != y).sum()
            wrong += torch.where(logits.isfinite().all(), missed, torch.nan)
        model.train()
        return float(wrong) / len(labels)
