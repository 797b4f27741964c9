"""The report: one self-contained HTML page."""

from __future__ import annotations

import base64
import os
import shlex
from importlib.resources import files
from pathlib import Path

from ..experiments.verdicts import DIRECTION, FAILS, HOLDS, NO_EFFECT, OPEN, UNJUDGED
from . import wording
from .record import Figure, Record, RecordError, collect

HEADLINE = "headline"  # the experiment of `make run`
KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
CLASSES = {
    HOLDS: "holds",
    DIRECTION: "holds partly",
    NO_EFFECT: "fails partly",
    FAILS: "fails",
    OPEN: "open",
    UNJUDGED: "none",
}


def write_report(folder: Path) -> tuple[Path, list[str]]:
    """Write ``folder/report.html`` from every ``folder/*/result.json``.

    Returns:
        The page's path, and one sentence for each result that could not be shown; the page lists these too.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(f"there is no folder {folder}; make results first: {_how_to_get_one(folder)}")
    records, problems = collect(folder)
    if not records:
        none = f"there are no results in {folder}; make some first: {_how_to_get_one(folder)}"
        raise RecordError("\n".join([none, *problems]))
    page = folder / "report.html"
    partial = folder / "report.partial"
    partial.write_text(render(records, problems), encoding="utf-8")
    os.replace(partial, page)
    return page, problems


def _how_to_get_one(folder: Path) -> str:
    return f"`{shlex.join(['holonom', 'reproduce', HEADLINE, '--out', str(folder)])}` takes about two minutes"


def render(records: list[Record], problems: list[str]) -> str:
    """The page's text."""
    from jinja2 import Environment, StrictUndefined

    from .typeset import typeset

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["math"] = typeset
    template = environment.from_string(_resource("page.html"))
    return template.render(
        records=records,
        problems=problems,
        picture=first_picture(records),
        style=_resource("page.css"),
        wording=wording,
        classes=CLASSES,
        inline=inline,
    )


def first_picture(records: list[Record]) -> tuple[Record, Figure] | None:
    """The headline's figure, which opens the page if there is one."""
    for record in records:
        if record.id == HEADLINE and record.figures and inline(record, record.figures[0]):
            return record, record.figures[0]
    return None


def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def inline(record: Record, figure: Figure) -> str:
    """A figure as a data URL; empty if the file is missing, no picture, or outside the experiment's folder."""
    path = (record.folder / figure.file).resolve()
    kind = KINDS.get(path.suffix.lower())
    if kind is None or path.parent != record.folder.resolve() or not path.is_file():
        return ""
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
