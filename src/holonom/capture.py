"""One training step as something that can be repeated cheaply: compiled, and on a GPU captured as a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .batches import Batches
from .ensemble import Ensemble, Loss
from .optimizer import Langevin

_WARM_UP = 3  # steps before a capture: kernels compile, workspaces are allocated, a rotated word starts to owe


class Stepper:
    """Runs steps of one ensemble, optimizer and data set.

    On a GPU the step is recorded once and replayed: the host only counts. It is recorded again when a
    hyperparameter changes, since numbers are part of the recording.
    """

    def __init__(self, ensemble: Ensemble, optimizer: Optimizer, loss: Loss, batches: Batches, compiled: bool) -> None:
        self.ensemble, self.optimizer, self.loss, self.batches = ensemble, optimizer, loss, batches
        self._parameters = [(name, p) for name, p in ensemble.named_parameters() if p.requires_grad]
        self._gradients = torch.compile(self._differentiate, dynamic=False) if compiled else self._differentiate
        if isinstance(optimizer, Langevin):
            optimizer.guard_gradients = False  # a replica that diverges is its own affair
            if compiled:
                for group in optimizer.param_groups:
                    group["fuse"] = True if group["fuse"] is None else group["fuse"]
        self._graph: Any = None
        self._recorded: Any = None
        self._steps_done = 0

    def run(self, order: Tensor) -> None:
        """One step for every row of the order."""
        if not order.is_cuda:
            for index in order:
                self._step(index)
            return
        start = 0
        while start < len(order) and (self._steps_done < _WARM_UP):
            self._step(order[start])
            start += 1
            self._steps_done += 1
        if start == len(order):
            return
        if self._graph is None or self._recorded != self._numbers():
            self._record(order)
        self._order[: len(order)].copy_(order)
        self._cursor.fill_(start)
        for _ in range(start, len(order)):
            self._graph.replay()
        if isinstance(self.optimizer, Langevin):
            self.optimizer.count_replays(len(order) - start)

    def _step(self, index: Tensor) -> None:
        gradients, _ = self._gradients(*self.batches.take(index))
        for name, p in self._parameters:
            p.grad = gradients[name]
        self.optimizer.step()

    def _differentiate(self, *batch: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return self.ensemble.gradients(self.loss, *batch, shared=self.batches.shared)

    def _numbers(self) -> list[tuple[Any, ...]]:
        """The hyperparameters a recording holds as constants; tensors are read anew by every replay."""
        return [
            tuple(v for k, v in group.items() if isinstance(v, float) and k != "owed")
            for group in self.optimizer.param_groups
        ]

    def _record(self, order: Tensor) -> None:
        self._order = torch.zeros((self.batches.per_epoch, *order.shape[1:]), dtype=order.dtype, device=order.device)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=order.device)
        self._graph = torch.cuda.CUDAGraph()
        self._recorded = self._numbers()
        with torch.cuda.graph(self._graph):  # records, runs nothing
            self._step(self._order.index_select(0, self._cursor)[0])
            self._cursor.add_(1)
        if isinstance(self.optimizer, Langevin):
            self.optimizer.count_replays(-1)
