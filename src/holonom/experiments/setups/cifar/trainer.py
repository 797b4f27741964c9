"""One network and its training step, which a GPU records once and replays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ....capture import record
from ....errors import ProjectionError
from ....optimizer import Langevin
from .optimizers import dropped_twice
from .recipes import Recipe

_WARM_UP = 3  # steps before a recording: momentum comes to be, kernels are chosen
_TESTED = 1000  # images at once


class Learner:
    """Trains one model by its recipe, epoch by epoch; on a GPU in bfloat16, weights staying float32.

    Args:
        as_input: turns a batch of images into what the model reads.
        compiled: train through torch.compile, which joins norms, sums and activations into one pass; the first
            network of a kind waits for its compilation.
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
        # Kernels are read as matrices by constraints, which wants their rows in one piece.
        packed = device.type == "cuda" and recipe.method == "SGD"
        layout = torch.channels_last if packed else torch.contiguous_format
        self.model = model.to(device=device, memory_format=layout)  # type: ignore[call-overload]
        self.as_input = as_input
        self._training = torch.compile(self.model, dynamic=False) if compiled else self.model
        self.optimizer = recipe.optimizer(model, fused=device.type == "cuda")
        if isinstance(self.optimizer, Langevin):
            # A GPU leaves out steps whose projection has no root; on a CPU the training ends there (see learn).
            self.optimizer.guard_gradients = device.type == "cuda"
        falls = recipe.falling
        self._schedule = dropped_twice(self.optimizer, recipe.epochs, recipe.rooted) if falls else lambda epoch: None
        self._parameters = list(model.parameters())
        self._sums = torch.zeros(2, device=device)
        self._graph: Any = None
        self._recorded: list[float] = []

    def learn(self, epoch: int, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """One epoch of batches (steps, batch, …), counted from 0; its mean loss and accuracy, as they were met."""
        self._schedule(epoch)
        self._sums.zero_()
        self.model.train()
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                self._replay(images, labels)
        else:
            try:
                for x, y in zip(images, labels, strict=True):
                    self._step(x, y)
            except ProjectionError:
                self._sums.fill_(torch.nan)
        loss, hits = (self._sums / len(images)).tolist()
        return loss, hits

    @torch.no_grad()
    def test(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """Loss and accuracy."""
        self.model.eval()
        sums = torch.zeros(2, device=self.device)
        for x, y in zip(torch.split(images, _TESTED), torch.split(labels, _TESTED), strict=True):
            outputs = self._forward(self.model, x)
            sums += torch.stack([cross_entropy(outputs, y, reduction="sum"), (outputs.argmax(1) == y).sum()])
        loss, hits = (sums / len(labels)).tolist()
        return loss, hits

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _forward(self, model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        cuda = self.device.type == "cuda"
        # Weights are read once a step, so a cache of their casts would save nothing and outlive a recording.
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if cuda else nullcontext():
            return model(self.as_input(images)).float()

    def _step(self, images: Tensor, labels: Tensor) -> None:
        outputs = self._forward(self._training, images)
        loss = cross_entropy(outputs, labels)
        for p, gradient in zip(self._parameters, torch.autograd.grad(loss, self._parameters), strict=True):
            p.grad = gradient if gradient.stride() == p.stride() else torch.empty_like(p).copy_(gradient)
        self.optimizer.step()
        self._sums += torch.stack([loss.detach(), (outputs.argmax(1) == labels).float().mean()])

    # ── recorded ─────────────────────────────────────────────────────────────────────────────────

    def _replay(self, images: Tensor, labels: Tensor) -> None:
        fresh, changed = self._graph is None, self._recorded != self._steps()
        self._keep(images, labels)
        done = 0
        # After a change, one: what it owes at the old rate must not become a constant.
        while done < min(_WARM_UP if fresh else 1 if changed else 0, len(images)):
            self._next()
            done += 1
        if done == len(images):
            return
        if fresh or changed:
            self._record()
        for _ in range(done, len(images)):
            self._graph.replay()
        self._count(len(images) - done)

    def _keep(self, images: Tensor, labels: Tensor) -> None:
        """Copy an epoch to where the recording reads it, and start at its first batch."""
        if self._graph is None:
            self._images, self._labels = torch.empty_like(images), torch.empty_like(labels)
            self._cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._images.copy_(images)
        self._labels.copy_(labels)
        self._cursor.zero_()

    def _next(self) -> None:
        self._step(self._images.index_select(0, self._cursor)[0], self._labels.index_select(0, self._cursor)[0])
        self._cursor.add_(1)

    def _steps(self) -> list[float]:
        """Numbers that a recording holds as constants."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def _record(self) -> None:
        self._graph = None  # its memory serves the next one
        self._graph, self._recorded = record(self._next), self._steps()
        self._count(-1)

    def _count(self, steps: int) -> None:
        """Of an optimizer that counts: replays, or what recording counted although nothing ran."""
        if isinstance(self.optimizer, Langevin):
            self.optimizer.count_replays(steps)
