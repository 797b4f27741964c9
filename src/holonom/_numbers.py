"""Whole numbers as users give them: Python's, NumPy's, or a tensor of one."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor


def as_whole(value: Any) -> int | None:
    """A whole number as Python's; None for anything else, and for True and False, which are mistakes here."""
    if isinstance(value, Tensor) and not value.ndim and not (value.is_floating_point() or value.is_complex()):
        value = value.item()
    return int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None
