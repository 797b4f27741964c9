"""The UCI chess endgames, king and rook against king, read from their file."""

from __future__ import annotations

import re

import torch

from ..errors import DataError
from .retrograde import DRAW
from .root import Root, read_text
from .table import Table

DEPTHS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
)
CLASSES = {word: number for number, word in enumerate(DEPTHS)} | {"draw": DRAW}


def chess(root: Root = None, *, verify: bool = True) -> Table:
    """28,056 positions with Black to move, and in how many moves White wins (thesis Fig. 3.18).

    The six attributes are file and rank (0–7) of the white king, the white rook and the black king;
    class k ≤ 16 means mate in k moves, 17 a draw. The thesis feeds "the row and column position for
    the three pieces" and does not say how they are scaled: :meth:`Table.numbers` gives six inputs,
    :meth:`Table.one_hot` 48. :func:`solve_chess` computes the same set.
    """
    attributes, labels = [], []
    for number, line in enumerate(read_text("uci-krkopt", "krkopt.data", root, verify=verify).split(), 1):
        *squares, word = line.split(",")
        if word not in CLASSES or len(squares) != 6 or not re.fullmatch("([a-h][1-8]){3}", "".join(squares)):
            raise DataError(f"krkopt.data, line {number} should be three squares and a class, not {line!r}")
        attributes.append([int(mark) - 1 if mark.isdigit() else ord(mark) - ord("a") for mark in squares])
        labels.append(CLASSES[word])
    return Table(torch.tensor(attributes), torch.tensor(labels), (8,) * 6)
