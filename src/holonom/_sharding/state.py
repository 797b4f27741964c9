"""State of DTensor parameters: placed as its parameter is, where it belongs to what lies on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .._step.configurational import SUMS
from ..constraints.base import MOMENTA
from .shards import Piece, is_sharded, local, piece_of

if TYPE_CHECKING:
    from ..constraints import Constraint

State = dict[str, Any]
OF_GROUPS = ("clock", "thermostat", SUMS)  # what a group has one of lies on all ranks


def placed(space: Constraint, p: Tensor, state: State) -> None:
    """Place what was computed from a whole parameter: slack variables, angles, radii of its own.

    What has the parameter's shape lies as the parameter does, one number a block as the blocks do. Of blocks that
    several ranks hold together every rank keeps all numbers.
    """
    if not is_sharded(p):
        return
    from .kinds import Kind, block_piece, kind_of

    piece = piece_of(p)
    if piece.is_whole or kind_of(space, piece) is not Kind.LOCAL:
        return
    for name, value in state.items():
        if name not in OF_GROUPS and isinstance(value, Tensor) and not is_sharded(value) and value.ndim:
            where: Piece | None = piece if value.shape == piece.shape else block_piece(space, piece)
            if where is None:
                continue
            if value.shape != where.shape:  # slack variables of rows are columns
                where = where.with_shape(value.shape, {d: d for d in where.dims})
            state[name] = where.spread(where.narrow(value).clone())


def replaced(space: Constraint, p: Tensor, state: State) -> None:
    """Place loaded state, whose tensors may be whole."""
    piece = piece_of(p)
    for name in (*MOMENTA, "last_noise", "reference"):
        if name in state and not is_sharded(state[name]):
            state[name] = piece.spread(piece.narrow(state[name]).clone())
    placed(space, p, state)


def local_state(state: State) -> State:
    """The state with local tensors, sharing memory with it."""
    return {name: local(value) if isinstance(value, Tensor) else value for name, value in state.items()}
