"""The claims of results as Markdown tables."""

from __future__ import annotations

from pathlib import Path

from .record import Record, RecordError, collect
from .wording import CLAIM_HEADINGS, claim_row, published_margin


def claims_table(record: Record) -> str:
    """A table of a result's claims, with what was counted in the first column."""
    rows = [list(CLAIM_HEADINGS), ["---"] * len(CLAIM_HEADINGS)]
    for claim in record.claims:
        name, published, value, margin, verdict = claim_row(claim)
        expected = published_margin(claim)
        said = f"{published} ({expected})" if expected else published
        counted = f" ({claim.detail})" if claim.detail else ""
        rows.append([f"{name}{counted}", said, value, margin, f"**{verdict}**"])
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


def write_tables(folder: Path) -> str:
    """The tables of every result in a folder, each below its experiment and size."""
    from .wording import size

    if not folder.is_dir():
        raise RecordError(f"there is no folder {folder}")
    records, problems = collect(folder)
    parts = [f"## {record.name}: {record.title}\n\n{size(record)}\n\n{claims_table(record)}" for record in records]
    return "\n".join([*parts, *(f"Not shown: {problem}\n" for problem in problems)])
