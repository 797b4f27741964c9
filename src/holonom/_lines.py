"""Warnings point at the user's line, however many of our calls and torch's lie between."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ._torch import folder

_PACKAGE = Path(__file__).parent
_OURS = tuple(f"{code}{os.sep}" for code in (_PACKAGE, folder))
_USERS = tuple(f"{_PACKAGE / name}{os.sep}" for name in ("experiments", "cli"))
"""Parts of the package that use it as anybody would."""


def users_line() -> int:
    """The ``stacklevel`` with which a warning in the calling function names the first line outside the library."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) and not file.startswith(_USERS)
