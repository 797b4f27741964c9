"""Which run the checkpoints in a folder belong to, so that no run continues from another's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from . import ranks
from .artifacts import identity_text, write_text

FOLDER, NAME = "checkpoints", "run.json"


def prepare(run_folder: Path, identity: dict[str, Any], resume: bool) -> bool:
    """Reserve a folder's checkpoints for this run; returns whether there are some to continue from.

    A fresh run deletes what it finds. A resumed run must have the ``identity`` (everything that changes its numbers)
    that was written beside the checkpoints.
    """
    folder = run_folder / FOLDER
    text = identity_text(identity)
    found = _read(folder / NAME) if resume else None
    if found is not None:
        _compare(folder, found, json.loads(text))
    ranks.wait()  # no rank may delete before all have read
    if found is None and ranks.rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        write_text(text, folder / NAME)
    ranks.wait()
    return found is not None


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no settings")
        return found
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); leave out --resume to start over") from None


def _compare(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    names = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    if names:
        differences = "; ".join(f"{name} {found.get(name)}, not {wanted.get(name)}" for name in names)
        raise CheckpointError(
            f"{folder} is of other settings: {differences}. Give the same options to continue that run, "
            "another --out to keep it, or leave out --resume to start over"
        )
