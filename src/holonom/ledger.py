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
            self._kinds[id(p)] = (p.dtype, p.device, p.stride())
            self._versions[id(p)] = p._version

    def note(self, params: Iterable[Tensor]) -> None:
        """What was written until now was the optimizer's own."""
        for p in params:
            self._versions[id(p)] = p._version

    def inspect(self, cell: Cell, state: dict[Tensor, State], fresh: bool) -> None:
        """Before a step: refuse what it cannot take, and take up in-place edits; see :meth:`take_up`."""
        for p, name in zip(cell.params, cell.names, strict=True):
            if p.grad is not None and p.grad.layout != torch.strided:
                raise RuntimeError(
                    f"{name} has a {p.grad.layout} gradient; momenta and constraints need all entries. "
                    f"Build the embedding with sparse=False, or give that parameter to another optimizer."
                )
            if (p.dtype, p.device, p.stride()) != self._kinds[id(p)]:
                self._refuse_moved(p, name, cell.space)
            if p._version != self._versions[id(p)]:
                self.take_up(cell.space, p, name, state, fresh)

    def take_up(self, space: Constraint, p: Tensor, name: str, state: dict[Tensor, State], fresh: bool) -> None:
        """Continue from a parameter that was changed in place.

        While it is ``fresh``, before its first step, the state is what the weights say; later only if it contradicts
        them.
        """
        if p._version != self._versions[id(p)]:
            groups.take_up_edit(space, p, name, state, force=fresh)
            self._versions[id(p)] = p._version

    def _refuse_moved(self, p: Tensor, name: str, space: Constraint) -> None:
        """model.to() leaves the state behind, and a new memory layout may no longer be viewed as blocks."""
        dtype, device, _ = self._kinds[id(p)]
        if p.dtype != dtype or p.device != device:
            raise RuntimeError(
                f"{name} was {dtype} on {device} when the optimizer was built and is {p.dtype} on {p.device} now: "
                f"convert or move the model first, then build the optimizer (and load this one's state_dict())"
            )
        space.check(p.detach(), name)
        self._kinds[id(p)] = (p.dtype, p.device, p.stride())
