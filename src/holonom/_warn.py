"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings


def warn_user(message: str) -> None:
    """Warn with the first line outside of holonom and torch as its place."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("holonom", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
