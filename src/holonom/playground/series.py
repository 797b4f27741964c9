"""Numbers along a run, thinned as the run grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]
MOST = 1000  # rows


class Series:
    """Rows of a step and one number a column. Of more than :data:`MOST` rows every second one is kept."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.rows: list[tuple[float, ...]] = []
        self.stride = 1

    def add(self, step: int, values: Sequence[float]) -> None:
        """A row, unless it is too close behind the last one; a row of the same step is replaced."""
        if self.rows and step == self.rows[-1][0]:
            self.rows.pop()
        elif self.rows and step < self.rows[-1][0] + self.stride:
            return
        self.rows.append((step, *values))
        if len(self.rows) > MOST:
            self.rows = self.rows[::2]
            self.stride = max(1, int((self.rows[-1][0] - self.rows[0][0]) / MOST * 2))

    def table(self) -> Array:
        """(columns + 1, rows): the steps, then every column."""
        table: Array = np.array(self.rows, dtype=np.float32).reshape(-1, len(self.columns) + 1).T
        return table
