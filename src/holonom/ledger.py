"""What the optimizer last saw of its parameters, which tells what others did to them since."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from . import groups
from .cell import Cell, State
from .constraints.base import Constraint


class Ledger:
    """Per parameter its kind and memory layout, and torch's version counter, which counts in-place writes.

    Entries go by id: a tensor's own hash takes longer.
    """

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}
        self._kinds: dict[int, tuple[Any, ...]] = {}

    def enter(self, params: Iterable[Tensor]) -> None:
        """From now on these are in the optimizer's hands, as they are."""
        for p in params:
            self._kinds[id(p)] = (p.dtype, p.device, p.stride(), p.shape)
            self._versions[id(p)] = p._version

    def note(self, params: Iterable[Tensor]) -> None:
        """What was written until now was the optimizer's own."""
        for p in params:
            self._versions[id(p)] = p._version

    def refuse(self, cell: Cell) -> None:
        """Raise for what a step cannot take."""
        for p, name in zip(cell.params, cell.names, strict=True):
            gradient = p.grad
            if gradient is not None and (gradient.layout != torch.strided or gradient.shape != p.shape):
                _refuse_gradient(p, gradient, name)
            if (p.dtype, p.device, p.stride(), p.shape) != self._kinds[id(p)]:
                self._refuse_moved(p, name, cell.space)

    def take_up(self, cell: Cell, state: dict[Tensor, State], fresh: bool) -> None:
        """Continue from parameters that were changed in place.

        While they are ``fresh``, before the first step, the state is what the weights say; later only if it
        contradicts them.
        """
        for p, name in zip(cell.params, cell.names, strict=True):
            if p._version != self._versions[id(p)]:
                groups.take_up_edit(cell.space, p, name, state, force=fresh)
                self._versions[id(p)] = p._version

    def _refuse_moved(self, p: Tensor, name: str, space: Constraint) -> None:
        """model.to() leaves the state behind, and a new memory layout may no longer be viewed as blocks."""
        dtype, device, _, shape = self._kinds[id(p)]
        if p.dtype != dtype or p.device != device:
            raise RuntimeError(
                f"{name} was {dtype} on {device} when the optimizer was built and is {p.dtype} on {p.device} now: "
                f"convert or move the model first, then build the optimizer (and load this one's state_dict())"
            )
        if p.shape != shape:
            raise RuntimeError(
                f"{name} had shape {tuple(shape)} when the optimizer was built and has {tuple(p.shape)} now: "
                f"build the optimizer again"
            )
        space.check(p.detach(), name)
        self._kinds[id(p)] = (p.dtype, p.device, p.stride(), p.shape)


def _refuse_gradient(p: Tensor, gradient: Tensor, name: str) -> None:
    if gradient.layout != torch.strided:
        raise RuntimeError(
            f"{name} has a {gradient.layout} gradient; momenta and constraints need all entries. "
            f"Build the embedding with sparse=False, or give that parameter to another optimizer."
        )
    raise RuntimeError(
        f"{name} has shape {tuple(p.shape)}, but its gradient has shape {tuple(gradient.shape)}: one of them was "
        f"replaced or resized through .data. Call backward() again before the step."
    )
