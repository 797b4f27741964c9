"""Shows a result on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..experiments.verdicts import DIRECTION, FAILS, HOLDS, NO_EFFECT, OPEN, UNJUDGED
from .record import Record
from .wording import NONE, cell, claim_row, duration, numeric_columns, published_margin, size, tally

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {
    HOLDS: "bold green", DIRECTION: "green", NO_EFFECT: "red", FAILS: "bold red", OPEN: "bold yellow", UNJUDGED: "dim",
}  # fmt: skip

HEADINGS = ("claim", "published", "measured, with its 95 % interval", "verdict")
WIDEST = 100  # columns of the claims' table; it can be read at 80


def show(record: Record, console: Console) -> None:
    """Print tables, notes and, last and most visible, the claims with their verdicts."""
    from rich.table import Table
    from rich.text import Text

    console.print()
    console.print(Text(f"{record.id}: {record.title}", "bold"))
    console.print(Text(f"{record.source}; {size(record)}, {duration(record.seconds)}", "dim"))
    for table in record.tables:
        shown = Table()
        for column, number in zip(table.columns, numeric_columns(table), strict=True):
            shown.add_column(Text(cell(column)), justify="right" if number else "left")
        for row in table.rows:
            shown.add_row(*(Text(cell(value)) for value in row))
        console.print(Text(table.title, "italic"))
        console.print(shown)
    for note in record.notes:
        console.print(Text(f"Note: {note}", "dim"))
    claims = Table()
    for heading in HEADINGS:
        claims.add_column(heading)
    for claim in record.claims:
        name, published, value, margin, verdict = claim_row(claim)
        title = Text.assemble(name, (f"\n{claim.detail}" if claim.detail else "", "dim"))
        expected = published_margin(claim)
        said = Text.assemble(published, (f"\nmargin {expected}" if expected else "", "dim"))
        measured = Text.assemble(value, (f"\nmargin {margin}" if margin != NONE else "", "dim"))
        claims.add_row(title, said, measured, Text(verdict, STYLES[verdict]))
    console.print(Text(tally(record.claims), "italic"))
    console.print(claims, width=min(console.width, WIDEST))
