"""Reads and checks result.json, so that code that shows a record can rely on its shape."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..experiments.base import catalogue, natural
from ..experiments.claims import Claim
from ..experiments.verdicts import VERDICTS
from .legacy import upgrade

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
    "commit": (str, ""),
    "versions": (dict, {}),
    "hardware": (str, ""),
    "resumed": (bool, False),
    "tables": (list, []),
    "figures": (list, []),
    "notes": (list, []),
}
_MAYBE = (*_NUMBER, type(None))
_EVERY_CLAIM = {
    "name": (str, _REQUIRED),
    "published": (str, _REQUIRED),
    "verdict": (str, _REQUIRED),
    "detail": (str, ""),
}
_OLD_CLAIM = {**_EVERY_CLAIM, "measured": (_MAYBE, _REQUIRED), "uncertainty": (_MAYBE, _REQUIRED)}
_CLAIM = {
    **_EVERY_CLAIM,
    "value": (str, _REQUIRED),
    "margin": (_MAYBE, _REQUIRED),
    "low": (_MAYBE, _REQUIRED),
    "high": (_MAYBE, _REQUIRED),
    "size": (_MAYBE, None),
    "size_error": (_NUMBER, 0.0),
    "exact": (bool, False),
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
    commit: str
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

    def other_than_published(self) -> list[tuple[str, Any, Any]]:
        """Names, values here and values of the paper scale, where a result of a large scale differs from it."""
        if self.scale not in ("large", "paper") or self.id not in catalogue():
            return []
        paper = json.loads(json.dumps(catalogue()[self.id].scales["paper"]))
        runs = paper.pop("replicas")
        fewer = [("runs", self.replicas, runs)] if self.replicas is not None and self.replicas < runs else []
        here = self.settings
        return fewer + [(name, here[name], x) for name, x in paper.items() if name in here and here[name] != x]


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
        values["claims"] = [_claim(claim, values["id"], values["scale"]) for claim in values["claims"]]
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


def _claim(source: Any, id: str, scale: str) -> Claim:
    if isinstance(source, dict) and "measured" in source:
        try:
            return upgrade(_take(source, _OLD_CLAIM, "a claim"), id, scale)
        except ValueError as error:
            raise RecordError(str(error)) from None
    values = _take(source, _CLAIM, "a claim")
    if values["verdict"] not in VERDICTS:
        raise RecordError(f"the claim {values['name']!r} has the unknown verdict {values['verdict']!r}")
    empty = {"margin": math.nan, "low": math.nan, "high": math.nan}
    if not values["exact"]:
        empty |= {"low": -math.inf, "high": math.inf}
    numbers = {key: end if values[key] is None else float(values[key]) for key, end in empty.items()}
    return Claim(**{**values, **numbers})


def _table(source: Any) -> Table:
    table = Table(**_take(source, _TABLE, "a table"))
    if not all(isinstance(row, list) and len(row) == len(table.columns) for row in table.rows):
        raise RecordError(f"the table {table.title!r} has rows that do not fit its columns")
    return table
