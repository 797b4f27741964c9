"""Reads and checks result.json, so that code that shows a record can rely on its shape."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..experiments.base import natural
from ..experiments.claims import FAILS, HOLDS, OPEN, Claim

NAME = "result.json"
_NUMBER = (int, float)
_REQUIRED = object()

# The fields of a record: types, and the default of an optional field.
_FIELDS: dict[str, tuple[Any, Any]] = {
    "id": (str, _REQUIRED),
    "scale": (str, _REQUIRED),
    "seed": (int, _REQUIRED),
    "device": (str, _REQUIRED),
    "seconds": (_NUMBER, _REQUIRED),
    "claims": (list, _REQUIRED),
    "title": (str, ""),
    "source": (str, ""),
    "says": (str, ""),
    "replicas": ((int, type(None)), None),
    "settings": (dict, {}),
    "command": (str, ""),
    "date": (str, ""),
    "versions": (dict, {}),
    "hardware": (str, ""),
    "resumed": (bool, False),
    "tables": (list, []),
    "figures": (list, []),
    "notes": (list, []),
}
_CLAIM = {
    "name": (str, _REQUIRED),
    "published": (str, _REQUIRED),
    "measured": ((*_NUMBER, type(None)), _REQUIRED),
    "uncertainty": ((*_NUMBER, type(None)), _REQUIRED),
    "verdict": (str, _REQUIRED),
    "detail": (str, ""),
}
_TABLE = {"title": (str, ""), "columns": (list, _REQUIRED), "rows": (list, _REQUIRED)}
_FIGURE = {"file": (str, _REQUIRED), "caption": (str, "")}


class RecordError(ValueError):
    """A result file is damaged or incomplete."""


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[Any]
    rows: list[list[Any]]


@dataclass(frozen=True)
class Figure:
    file: str
    caption: str


@dataclass(frozen=True)
class Record:
    """The result of an experiment; see :func:`holonom.experiments.reproduce.reproduce`."""

    folder: Path
    id: str
    scale: str
    seed: int
    device: str
    seconds: float
    claims: list[Claim]
    title: str
    source: str
    says: str
    replicas: int | None
    settings: dict[str, Any]
    command: str
    date: str
    versions: dict[str, Any]
    hardware: str
    resumed: bool
    tables: list[Table]
    figures: list[Figure]
    notes: list[Any]

    @property
    def name(self) -> str:
        """The id, followed by the folder if its name differs."""
        return self.id if self.folder.name == self.id else f"{self.id} ({self.folder.name})"


def load(path: Path) -> Record:
    """The record in a result file; raises :class:`RecordError` if it is not complete."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(f"{path} is damaged: {error}; run the experiment again") from None
    try:
        values = _take(content, _FIELDS, "the record")
        values["claims"] = [_claim(claim) for claim in values["claims"]]
        values["tables"] = [_table(table) for table in values["tables"]]
        values["figures"] = [Figure(**_take(figure, _FIGURE, "a figure")) for figure in values["figures"]]
    except RecordError as error:
        raise RecordError(f"{path} is not a complete result: {error}; run the experiment again") from None
    return Record(path.parent, **values)


def collect(folder: Path) -> tuple[list[Record], list[str]]:
    """Every complete record below a folder in the papers' order, and the problems of the others."""
    records, problems = [], []
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        if (place / NAME).exists():
            try:
                records.append(load(place / NAME))
            except RecordError as error:
                problems.append(str(error))
        elif (place / "checkpoints").is_dir():
            problems.append(f"{place} is unfinished: it has checkpoints but no {NAME}; continue it with --resume")
    records.sort(key=lambda record: (natural(record.id), record.folder.name))
    return records, problems


def _take(source: Any, fields: Mapping[str, tuple[Any, Any]], what: str) -> dict[str, Any]:
    """The given fields of a JSON object, with their types checked."""
    if not isinstance(source, dict):
        raise RecordError(f"{what} is not an object")
    missing = [name for name, (_, default) in fields.items() if default is _REQUIRED and name not in source]
    if missing:
        raise RecordError(f"{what} lacks {', '.join(missing)}")
    taken = {name: source.get(name, default) for name, (_, default) in fields.items()}
    wrong = [name for name, (kind, _) in fields.items() if not isinstance(taken[name], kind)]
    if wrong:
        raise RecordError(f"{what} has an unusable value of {', '.join(wrong)}")
    return taken


def _claim(source: Any) -> Claim:
    values = _take(source, _CLAIM, "a claim")
    if values["verdict"] not in (HOLDS, FAILS, OPEN):
        raise RecordError(f"the claim {values['name']!r} has the unknown verdict {values['verdict']!r}")
    numbers = {key: math.nan if values[key] is None else float(values[key]) for key in ("measured", "uncertainty")}
    return Claim(**{**values, **numbers})


def _table(source: Any) -> Table:
    table = Table(**_take(source, _TABLE, "a table"))
    if not all(isinstance(row, list) and len(row) == len(table.columns) for row in table.rows):
        raise RecordError(f"the table {table.title!r} has rows that do not fit its columns")
    return table
