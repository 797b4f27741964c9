"""A model's inputs: a tensor, a tuple of several, or a dict of keyword inputs. All count examples in front."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


def parts(x: Inputs) -> list[Tensor]:
    """The tensors of inputs."""
    if isinstance(x, Tensor):
        return [x]
    return list(x.values() if isinstance(x, Mapping) else x)


def each(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """Inputs with a function applied to every tensor."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, Mapping):
        return {name: function(part) for name, part in x.items()}
    return tuple(map(function, x))


def count(x: Inputs) -> int:
    """How many examples there are."""
    return len(parts(x)[0])


def split(x: Inputs, size: int | None) -> Iterator[Inputs]:
    """Inputs of at most ``size`` examples, one after the other; None for all at once."""
    number = count(x)
    for start in range(0, number, size or number):
        yield rows(x, slice(start, start + (size or number)))


def rows(x: Inputs, index: Any) -> Inputs:
    """What an index takes of every tensor."""
    return each(itemgetter(index), x)


def call(model: nn.Module, x: Inputs, state: Mapping[str, Tensor] | None = None) -> Any:
    """The model's output, with the parameters of ``state`` in place of its own."""
    arguments = ((), dict(x)) if isinstance(x, Mapping) else (x if isinstance(x, tuple) else (x,), {})
    return functional_call(model, dict(state or {}), *arguments)


def checked(data: Any) -> tuple[Inputs, Tensor]:
    """A pair of inputs and targets; raises for what is none."""
    pair = isinstance(data, (tuple, list)) and len(data) == 2
    x, y = data if pair else (None, None)
    if isinstance(x, (list, tuple)):
        x = tuple(x)  # a named tuple would be one input
    named = isinstance(x, Mapping) and all(isinstance(name, str) for name in x)
    tensors = parts(x) if named or isinstance(x, tuple) else [x]  # type: ignore[arg-type]
    if not pair or not tensors or not all(isinstance(part, Tensor) for part in (*tensors, y)):
        raise TypeError(
            "data is a pair of inputs and targets, tensors with the examples in front: sample(model, loss, (x, y), "
            "...). Several inputs are a tuple, ((x1, x2), y), or a dict of keyword inputs, ({'x': x, 'mask': mask}, "
            "y). Of a data set or a loader stack its examples, of NumPy arrays make tensors (torch.from_numpy)"
        )
    shapes = [tuple(part.shape) for part in (*tensors, y)]
    if not all(shapes) or len({shape[0] for shape in shapes}) > 1 or not shapes[0][0]:
        given = ", ".join(map(str, shapes[:-1]))
        raise ValueError(
            f"inputs of shape {given} and targets of shape {shapes[-1]} must be as many examples, counted by their "
            f"first dimension"
        )
    return x, y  # type: ignore[return-value]


def moved(x: Inputs, device: torch.device) -> Inputs:
    return each(lambda part: part.to(device), x)
