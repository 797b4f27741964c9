"""Distance between initial and trained weights (thesis, equation 6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..landscape.states import Blocks, State, Subject, blocks_of


def distance(model: nn.Module, start: State | nn.Module, end: State | nn.Module, replicas: int | None = None) -> Tensor:
    """‖θ_end − θ_start‖ / ‖θ_start‖ over all parameters (6.3), a number or (R,) for ensembles; buffers do not count."""
    subject = Subject(model, replicas)
    first, last = subject.take(start, "start"), subject.take(end, "end")
    return _relative(subject, first, last, list(subject.parameters))


def block_distances(
    model: nn.Module,
    start: State | nn.Module,
    end: State | nn.Module,
    blocks: Blocks = "auto",
    replicas: int | None = None,
) -> dict[str, Tensor]:
    """:func:`distance` of every block by itself; blocks as for :func:`holonom.landscape.blocks_of`."""
    subject = Subject(model, replicas)
    first, last = subject.take(start, "start"), subject.take(end, "end")
    named = {
        label: [name for name in names if name in subject.parameters]
        for label, names in blocks_of(subject.model, blocks).items()
    }
    return {label: _relative(subject, first, last, names) for label, names in named.items() if names}


class Travelled(NamedTuple):
    """Relative to ‖θ₀‖: ``displacement`` from the first state (6.3), and the ``length`` of the way so far."""

    displacement: Tensor
    length: Tensor


def travelled(model: nn.Module, states: Sequence[State | nn.Module], replicas: int | None = None) -> Travelled:
    """Displacement and path length along a saved trajectory, (S,) or (S, R) each.

    The length counts every turn between saved states, and grows as they are saved more often.
    """
    if not states:
        raise ValueError("there are no states to measure a distance between")
    subject = Subject(model, replicas)
    names = list(subject.parameters)
    first = last = subject.take(states[0], "state 0")
    scale = _norm(subject, [first[name] for name in names])
    displacement, length = [torch.zeros_like(scale)], [torch.zeros_like(scale)]
    for number, state in enumerate(states[1:], 1):
        now = subject.take(state, f"state {number}")
        displacement.append(_norm(subject, [now[name] - first[name] for name in names]) / scale)
        length.append(length[-1] + _norm(subject, [now[name] - last[name] for name in names]) / scale)
        last = now
    return Travelled(torch.stack(displacement), torch.stack(length))


def _relative(subject: Subject, start: dict[str, Tensor], end: dict[str, Tensor], names: list[str]) -> Tensor:
    moved = _norm(subject, [end[name] - start[name] for name in names])
    return moved / _norm(subject, [start[name] for name in names])


def _norm(subject: Subject, tensors: list[Tensor]) -> Tensor:
    """The norm of all of them together, for each replica; float64."""
    front = 0 if subject.replicas is None else 1
    squares = [x.double().square().reshape(*x.shape[:front], -1).sum(-1) for x in tensors]
    return torch.stack(squares).sum(0).sqrt()
