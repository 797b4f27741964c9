"""What is measured at every point: losses and metrics, averaged over data that is read once for all points."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

Metric = Callable[[Any, Any], Tensor]
Forward = Callable[[Any, Any], tuple[Any, Any]]
_BATCH_SIZE = 512


class Evaluation:
    """Metrics averaged over a data set; made by :func:`over`."""

    def __init__(
        self, data: Any, metrics: Mapping[str, Metric], forward: Forward, batch_size: int | None, shared: bool
    ) -> None:
        self.metrics = dict(metrics)
        self.forward = forward
        self.shared = shared
        self._tensors: list[Tensor] | None = None
        self._batches: Iterable[Any] = ()
        self.batch_size = batch_size
        if _is_tensors(data):
            self._tensors = list(data)
            dim = 0 if shared else 1
            if len({x.shape[dim] for x in data}) != 1:
                raise ValueError(f"inputs and targets differ in length: {[tuple(x.shape) for x in data]}")
        elif isinstance(data, Dataset):
            self._batches = DataLoader(data, batch_size or _BATCH_SIZE)
        elif isinstance(data, Iterator):
            raise TypeError(
                "data is an iterator, which is empty after one pass; give a DataLoader, a list of batches or tensors"
            )
        elif isinstance(data, Iterable):
            self._batches = data
        else:
            raise TypeError(f"data must be a loader, a data set or tensors, got {type(data).__name__}")

    @property
    def divisible(self) -> bool:
        """Whether batches may have any size: the data is tensors, and no batch size was given."""
        return self._tensors is not None and self.batch_size is None

    def batches(self, device: torch.device, size: int | None = None) -> Iterator[Any]:
        """The batches, on the device, of ``size`` examples where they are divisible."""
        empty = True
        for batch in self._batches if self._tensors is None else self._cut(self._tensors, size):
            empty = False
            yield map_tensors(lambda x: x.to(device, non_blocking=True), batch)
        if empty:
            raise ValueError("the data is empty, so metrics have no mean")

    def count(self, size: int | None = None) -> int | None:
        """Number of batches, or None for a loader without a length."""
        if self._tensors is not None:
            return -(-self._tensors[0].shape[0 if self.shared else 1] // self._size(size))
        try:
            return len(self._batches)  # type: ignore[arg-type]
        except TypeError:
            return None

    def _size(self, size: int | None) -> int:
        return self.batch_size or size or _BATCH_SIZE

    def _cut(self, tensors: list[Tensor], size: int | None) -> Iterator[tuple[Tensor, ...]]:
        dim = 0 if self.shared else 1
        pieces = [torch.split(x, self._size(size), dim) for x in tensors] if tensors[0].shape[dim] else []
        return zip(*pieces, strict=True)

    def measure(self, model: Callable[..., Any], batch: Any) -> dict[str, Tensor]:
        """Every metric's mean over one batch, from outputs in at least float32."""
        outputs, targets = self.forward(model, batch)
        outputs = map_tensors(_widened, outputs)
        return {name: self._mean(name, metric(outputs, targets)) for name, metric in self.metrics.items()}

    def _mean(self, name: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor) or value.ndim > 1:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"metric {name!r} returned {got}; it must return one number (the mean over the batch) or one "
                f"for each example"
            )
        return (value if value.is_floating_point() else value.float()).mean()

    def size(self, batch: Any) -> int:
        """The number of examples in a batch."""
        found = [x for x in tensors(batch) if x.ndim]
        if not found:
            raise ValueError("a batch must hold tensors with the examples in front")
        return int(found[-1].shape[0 if self.shared or found[-1].ndim < 2 else 1])


class Function:
    """A function of the model, ``evaluate(model)`` → one number, or several by name; treated as one batch."""

    shared = True

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def batches(self, device: torch.device, size: int | None = None) -> Iterator[Any]:
        yield ()

    def count(self, size: int | None = None) -> int | None:
        return 1

    def size(self, batch: Any) -> int:
        return 1

    def measure(self, model: Callable[..., Any], batch: Any) -> dict[str, Tensor]:
        result = self.function(model)
        values = dict(result) if isinstance(result, Mapping) else {"value": result}
        for name, value in values.items():
            if not isinstance(value, Tensor) or value.ndim:
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(
                    f"evaluate must return one number as a Tensor, or a mapping of names to such; {name!r} is {got}"
                )
        if not values:
            raise ValueError("evaluate returned no value")
        return values


def as_evaluation(evaluate: Evaluation | Function | Callable[[Any], Any]) -> Evaluation | Function:
    if isinstance(evaluate, (Evaluation, Function)):
        return evaluate
    if not callable(evaluate):
        raise TypeError(
            f"evaluate must be landscape.over(data, metrics) or a function of the model, got {type(evaluate).__name__}"
        )
    return Function(evaluate)


def over(
    data: Any,
    metrics: Metric | Mapping[str, Metric],
    *,
    forward: Forward | None = None,
    batch_size: int | None = None,
    shared: bool = True,
) -> Evaluation:
    """What to measure at every point of a landscape: metrics, averaged over data.

    >>> evaluate = over(loader, {"loss": F.cross_entropy, "error": error_rate})
    >>> path = interpolate(model, start, end, evaluate)

    Args:
        data: a loader, a data set, a list of batches, or a pair of tensors (inputs, targets).
        metrics: a function (outputs, targets) → the batch's mean or one value per example, or several by name.
            The first one decides the barrier profile of a path.
        forward: (model, batch) → (outputs, targets); by default ``model(*batch[:-1])`` and ``batch[-1]``.
        batch_size: for tensors and data sets; by default chosen by the number of points, or 512.
        shared: False if every replica has other data: tensors of shape (R, N, …).
    """
    named = dict(metrics) if isinstance(metrics, Mapping) else {getattr(metrics, "__name__", "value"): metrics}
    if not named or not all(callable(metric) for metric in named.values()):
        raise TypeError(
            "metrics must be a function (outputs, targets) → Tensor, or a mapping of names to such functions"
        )
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    return Evaluation(data, named, forward or _forward, batch_size, shared)


def error_rate(outputs: Tensor, targets: Tensor) -> Tensor:
    """Share of wrong classes: arg max of (N, C) scores, or the sign of (N,) or (N, 1) logits."""
    scores = outputs.squeeze(-1) if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs
    classes = (scores > 0).to(targets.dtype) if scores.ndim == 1 else scores.argmax(1)
    return (classes != targets.reshape(classes.shape)).float().mean()


def _forward(model: Callable[..., Any], batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, Sequence) or len(batch) < 2:
        raise TypeError(
            f"a batch must be (inputs, …, targets), got {type(batch).__name__}; for other batches give "
            f"over(…, forward=lambda model, batch: (outputs, targets))"
        )
    return model(*batch[:-1]), batch[-1]


def _widened(x: Tensor) -> Tensor:
    """At least float32: a loss in bfloat16 has three digits, too few to show a barrier."""
    return x.float() if x.is_floating_point() and x.dtype.itemsize < 4 else x


def _is_tensors(data: Any) -> bool:
    return isinstance(data, (tuple, list)) and len(data) > 1 and all(isinstance(x, Tensor) for x in data)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Nested lists, tuples and dictionaries with ``function`` applied to everything else in them."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(function, x) for x in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_leaves(function, x) for x in tree)
    if isinstance(tree, dict):
        changed = copy.copy(tree)
        for key, x in tree.items():
            changed[key] = map_leaves(function, x)
        return changed
    return function(tree)


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    return map_leaves(lambda x: function(x) if isinstance(x, Tensor) else x, tree)


def tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(found.append, tree)
    return found
