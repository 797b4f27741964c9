"""One network and its training step, which a GPU captures once and replays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...._training.graphs import GraphedStep
from ....errors import ProjectionError
from ....optimizer import Langevin
from .optimizers import FREE, drop_twice
from .recipes import Recipe

_CHUNK = 1000  # test images at once


class Trainer:
    """Trains one model by its recipe, epoch by epoch; on a GPU in bfloat16 with float32 weights.

    Args:
        as_input: turns a batch of images into the model's input.
        compiled: train through torch.compile, which fuses norms, sums and activations; the first network of a kind
            waits for its compilation.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        as_input: Callable[[Tensor], Tensor],
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        self.device = device
        # Constraints view kernels as matrices, whose rows must be contiguous.
        packed = device.type == "cuda" and recipe.method in FREE
        layout = torch.channels_last if packed else torch.contiguous_format
        self.model = model.to(device=device, memory_format=layout)  # type: ignore[call-overload]
        self.as_input = as_input
        self._training = torch.compile(self.model, dynamic=False) if compiled else self.model
        self.optimizer = recipe.optimizer(model, fused=device.type == "cuda")
        if isinstance(self.optimizer, Langevin):
            # A GPU skips steps whose projection has no root; on a CPU the training ends there (see train_epoch).
            self.optimizer.guard_gradients = device.type == "cuda"
        decay = recipe.step_decay
        self._schedule = drop_twice(self.optimizer, recipe.epochs, recipe.lr_is_root) if decay else lambda epoch: None
        self._parameters = list(model.parameters())
        self._sums = torch.zeros(2, device=device)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._images = self._labels = torch.empty(0)

    def train_epoch(self, epoch: int, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """One epoch of batches (steps, batch, …), counted from 0; its mean loss and accuracy during training."""
        self._schedule(epoch)
        self._sums.zero_()
        self.model.train()
        self._load(images, labels)
        try:
            with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
                if isinstance(self.optimizer, Langevin):
                    for _ in range(len(images)):
                        self._graphed(self.optimizer.upcoming())
                else:
                    self._graphed(steps=len(images))
        except ProjectionError:
            self._sums.fill_(torch.nan)
        loss, accuracy = (self._sums / len(images)).tolist()
        return loss, accuracy

    @torch.no_grad()
    def evaluate(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """Loss and accuracy."""
        self.model.eval()
        sums = torch.zeros(2, device=self.device)
        for x, y in zip(torch.split(images, _CHUNK), torch.split(labels, _CHUNK), strict=True):
            outputs = self._forward(self.model, x)
            sums += torch.stack([cross_entropy(outputs, y, reduction="sum"), (outputs.argmax(1) == y).sum()])
        loss, accuracy = (sums / len(labels)).tolist()
        return loss, accuracy

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _forward(self, model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        cuda = self.device.type == "cuda"
        # Weights are cast once a step, so a cache of casts would save nothing, and it would outlive a capture.
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if cuda else nullcontext():
            return model(self.as_input(images)).float()

    def _step(self, images: Tensor, labels: Tensor) -> None:
        outputs = self._forward(self._training, images)
        loss = cross_entropy(outputs, labels)
        for p, gradient in zip(self._parameters, torch.autograd.grad(loss, self._parameters), strict=True):
            p.grad = gradient if gradient.stride() == p.stride() else torch.empty_like(p).copy_(gradient)
        self.optimizer.step()
        self._sums += torch.stack([loss.detach(), (outputs.argmax(1) == labels).float().mean()])

    def _next_step(self) -> None:
        self._step(self._images.index_select(0, self._cursor)[0], self._labels.index_select(0, self._cursor)[0])
        self._cursor.add_(1)

    def _load(self, images: Tensor, labels: Tensor) -> None:
        """Copy an epoch to the memory that a captured step reads, and start at its first batch."""
        if self._images.shape != images.shape:
            self._images, self._labels = torch.empty_like(images), torch.empty_like(labels)
            self._graphed = GraphedStep(self._next_step, self._rates, self.device, count=self._count)
        self._images.copy_(images)
        self._labels.copy_(labels)
        self._cursor.zero_()

    def _rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _count(self, steps: int) -> None:
        if isinstance(self.optimizer, Langevin):
            self.optimizer.count_replays(steps)
