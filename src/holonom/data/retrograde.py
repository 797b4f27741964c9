"""Solves king and rook against king: the depth of win of every position by retrograde analysis."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .table import Table

Array = np.ndarray[Any, np.dtype[Any]]

DRAW = 17
FILE, RANK = np.divmod(np.arange(64), 8)


def solve_chess() -> Table:
    """The UCI chess set computed from the rules: 28,056 positions with Black to move, and their classes.

    A position is (white king, rook, black king). With V₀ the mates, one sweep k → k + 1 reads::

        W_{k+1} = positions with White to move and some move into V_k
        V_{k+1} = positions with Black to move, not stalemate, whose every move ends in W₁ ∪ … ∪ W_{k+1}

    and a position's class is the first k with the position in V_k: the moves White needs against the
    best defence. What no sweep reaches is drawn, class 17: stalemate, or the rook is lost. The board's
    eight symmetries are divided out as in the file: the white king stands on the triangle a1–d1–d4;
    when it is on the diagonal, the black king is not above it; when that is too, the rook is not.

    Returns:
        The same :class:`Table` as :func:`chess` gives, rows in lexicographic order.
    """
    depth, legal = _depths()
    king, rook, black = np.indices((64, 64, 64))
    above = np.select(
        [FILE[piece] != RANK[piece] for piece in (king, black, rook)],
        [FILE[piece] < RANK[piece] for piece in (king, black, rook)],
    )
    rows = np.argwhere(legal & (FILE[king] < 4) & ~above)
    attributes = np.stack([FILE[rows], RANK[rows]], 2).reshape(-1, 6)
    return Table(torch.from_numpy(attributes), torch.from_numpy(depth[tuple(rows.T)]), (8,) * 6)


def _depths() -> tuple[Array, Array]:
    """Depth of win with Black to move, and which positions are legal, both indexed [king, rook, black]."""
    same = np.eye(64, dtype=bool)
    near = np.maximum(abs(FILE[:, None] - FILE), abs(RANK[:, None] - RANK)) <= 1
    steps = near & ~same
    lines = _open_lines()

    legal = ~near[:, None, :] & ~same[:, :, None] & ~same
    # [king, rook, square]: the black king is lifted off the board, so it cannot hide behind itself.
    attacked = lines.transpose(2, 0, 1)
    safe = ~near[:, None, :] & ~attacked
    stalemate = ~attacked & ~_some_step(safe, steps)

    white_wins = np.zeros_like(legal)
    depth = np.full(legal.shape, DRAW)
    for k in range(DRAW):
        lost = legal & ~stalemate & ~_some_step(safe & ~white_wins, steps)
        depth[lost & (depth == DRAW)] = k
        white_wins |= legal & safe & _white_moves_into(depth == k, steps, lines)
    return depth, legal


def _open_lines() -> Array:
    """[a, b, c]: a rook can move from a to b ≠ a with a piece on c, which is not strictly between them."""
    lines = np.zeros((64, 64, 64), dtype=bool)
    for fixed, free in ((FILE, RANK), (RANK, FILE)):
        start, end, piece = (np.expand_dims(free, axes) for axes in ((1, 2), (0, 2), (0, 1)))
        aligned = (fixed[:, None] == fixed)[:, :, None]
        between = (
            (np.minimum(start, end) < piece) & (piece < np.maximum(start, end)) & (fixed[:, None] == fixed)[:, None]
        )
        lines |= aligned & (start != end) & ~between
    return lines


def _some_step(goal: Array, steps: Array) -> Array:
    """[…, s]: some king's step from s enters ``goal[…, ·]``."""
    entries: Array = goal.astype(np.float32) @ steps.astype(np.float32)
    return entries > 0


def _white_moves_into(goal: Array, steps: Array, lines: Array) -> Array:
    """Where a move of the white king or the rook leads into ``goal``; right for legal positions with White to move."""
    found = np.moveaxis(_some_step(np.moveaxis(goal, 0, 2), steps), 2, 0)
    # Only the white king can be in the rook's way: a black one on its line would be in check with White to move.
    for start, end in np.argwhere(lines.any(2)):
        found[:, start] |= goal[:, end] & lines[start, end][:, None]
    return found
