"""What every command uses to print, and how it stops."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..experiments import ranks

if TYPE_CHECKING:
    from rich.console import Console

DONE, REFUSED, INTERRUPTED = 0, 2, 130  # exit codes


class Refusal(Exception):
    """The request cannot be met; the message says why."""


def say(text: str) -> None:
    """Print to standard error; under torchrun with the rank, since any process may fail."""
    print(f"[rank {ranks.rank()}] {text}" if ranks.size() > 1 else text, file=sys.stderr)


def require(*modules: str, extra: str) -> None:
    """Refuse a command whose optional dependencies are missing, before it starts a long run."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise Refusal(f"{', '.join(missing)} not installed; this needs: pip install 'holonom[{extra}]'")


def require_writable(folder: Path, remedy: str) -> None:
    """Make a folder, and refuse a command before it starts if no file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise Refusal(f"cannot write to the folder {folder} ({error.strerror}); {remedy}") from None


def console() -> Console:
    """As wide as the terminal or $COLUMNS; where there is neither, wide enough for tables."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    require("rich", extra="experiments")
    from rich.table import Table
    from rich.text import Text

    shown = Table()
    for number, column in enumerate(columns):
        shown.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    console().print(shown)
