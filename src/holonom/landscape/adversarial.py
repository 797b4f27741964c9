"""Adversarial initial weights: trained until they fit random labels (thesis Fig. 6.2B)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

from .evaluation import error_rate


class Adversarial(NamedTuple):
    """A state that fits random labels, its training accuracy, and the number of epochs it took."""

    state: dict[str, Tensor]
    accuracy: float
    epochs: int


def adversarial(
    model: nn.Module,
    inputs: Tensor | Dataset[Any] | DataLoader[Any],
    classes: int,
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    *,
    epochs: int = 100,
    accuracy: float = 1.0,
    batch_size: int = 128,
    seed: int = 0,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Adversarial:
    """Train a copy of the model on random labels until it fits them: an adversarial initial state.

    An example has the same label in every epoch. The seed decides labels and order.

    Args:
        inputs: (N, …); or a data set of (input, …, label), or its loader, whose batch size, workers and collation
            are used. Its labels are ignored.
        classes: labels are drawn uniformly from 0 … classes − 1.
        make_optimizer: parameters → optimizer, ``lambda params: torch.optim.SGD(params, 0.1, 0.9)``.
        epochs: the largest number of epochs.
        accuracy: stop once training accuracy, measured in evaluation mode after every epoch, is this high.
        loss: (outputs, labels) → Tensor; by default cross-entropy, binary for a single output.
    """
    if classes < 2:
        raise ValueError(f"random labels need at least 2 classes, got {classes}")
    count = _count(inputs)
    if not count or epochs < 1 or batch_size < 1:
        raise ValueError("random labels need inputs, at least one epoch and a batch size of at least 1")
    trained = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    device = next(trained.parameters()).device
    batches = _batches(inputs, labels, batch_size, generator, device)
    optimizer = make_optimizer(trained.parameters())
    criterion = loss or _cross_entropy
    reached, epoch = 0.0, 0
    while epoch < epochs and reached < accuracy:
        trained.train()
        for *inputs_of_batch, targets in batches():
            optimizer.zero_grad()
            torch.autograd.backward(criterion(trained(*inputs_of_batch), targets))
            optimizer.step()
        reached = 1 - _error(trained, batches, count)
        epoch += 1
    return Adversarial({name: x.detach().clone() for name, x in trained.state_dict().items()}, reached, epoch)


class _Relabelled(Dataset[Any]):
    """A data set with its labels replaced."""

    def __init__(self, data: Any, labels: Tensor) -> None:
        self.data, self.labels = data, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        *inputs, _ = self.data[index]
        return (*inputs, self.labels[index])


Batches = Callable[[], Iterator[list[Tensor]]]


def _count(inputs: Any) -> int:
    data: Any = inputs.dataset if isinstance(inputs, DataLoader) else inputs
    if isinstance(data, IterableDataset):
        raise TypeError("examples of a stream cannot keep their labels; give a data set with a length, or a tensor")
    return len(data)


def _batches(inputs: Any, labels: Tensor, batch_size: int, generator: torch.Generator, device: torch.device) -> Batches:
    """All examples on the device, shuffled at every call."""
    if isinstance(inputs, Tensor):
        targets = labels.to(inputs.device)

        def from_tensor() -> Iterator[list[Tensor]]:
            for index in torch.split(torch.randperm(len(inputs), generator=generator), batch_size):
                index = index.to(inputs.device)
                yield [inputs[index], targets[index]]

        return from_tensor
    given = inputs if isinstance(inputs, DataLoader) else DataLoader(inputs, batch_size)
    loader = DataLoader(
        _Relabelled(given.dataset, labels), given.batch_size or batch_size, shuffle=True, generator=generator,
        num_workers=given.num_workers, collate_fn=given.collate_fn, pin_memory=given.pin_memory,
    )  # fmt: skip
    return lambda: ([x.to(device, non_blocking=True) for x in batch] for batch in loader)


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(outputs.flatten(), labels.to(outputs.dtype))
    return functional.cross_entropy(outputs, labels)


@torch.no_grad()
def _error(model: nn.Module, batches: Batches, count: int) -> float:
    model.eval()
    return sum(float(error_rate(model(*inputs), y)) * len(y) for *inputs, y in batches()) / count
