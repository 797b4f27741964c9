"""Formats results as text, for the page and the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..experiments.claims import FAILS, HOLDS, OPEN, Claim
from .record import Record, Table

CLAIM_HEADINGS = ("claim", "published", "measured ± 95 %", "verdict")


def measured(claim: Claim) -> str:
    """A claim's number with its uncertainty, rounded to two digits of the latter."""
    value, half = claim.measured, claim.uncertainty
    if not math.isfinite(value):
        return "–"
    if not math.isfinite(half):
        return _typeset(f"{value:.4g}, no interval")
    if half <= 0:
        return _typeset(f"{value:.4g}")
    decimals = 1 - math.floor(math.log10(half))
    if decimals > 6:
        return _typeset(f"{value:.3g} ± {half:.2g}")
    shown = max(decimals, 0)
    rounded = round(value, decimals) + 0.0  # turns -0.0 into 0.0
    return _typeset(f"{rounded:.{shown}f} ± {round(half, decimals):.{shown}f}")


def _typeset(text: str) -> str:
    return text.replace("-", "−")


def claim_row(claim: Claim) -> tuple[str, str, str, str]:
    """A claim as one row below :data:`CLAIM_HEADINGS`."""
    return claim.name, claim.published, measured(claim), claim.verdict


def cell(value: Any) -> str:
    """The text of a table cell."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def numeric_columns(table: Table) -> list[bool]:
    """Which columns hold numbers; these are right-aligned."""
    columns = [[cell(row[i]) for row in table.rows] for i in range(len(table.columns))]
    return [any(map(_starts_as_number, column)) and all(map(_fits_numbers, column)) for column in columns]


def _starts_as_number(text: str) -> bool:
    return text.lstrip("+-−<>≤≥≈ ")[:1].isdigit()


def _fits_numbers(text: str) -> bool:
    return _starts_as_number(text) or text in ("", "–", "diverged")


def duration(seconds: float) -> str:
    """8.4 s, 2 min 5 s, 3 h 12 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def tally(claims: Iterable[Claim]) -> str:
    """4 claims: 2 hold, 1 does not hold, 1 inconclusive."""
    count = Counter(claim.verdict for claim in claims)
    words = {HOLDS: ("holds", "hold"), FAILS: ("does not hold", "do not hold"), OPEN: ("inconclusive",) * 2}
    parts = [f"{count[verdict]} {words[verdict][count[verdict] != 1]}" for verdict in words if count[verdict]]
    total = sum(count.values())
    heading = f"{total} claim{'' if total == 1 else 's'}"
    return f"{heading}: {', '.join(parts)}" if parts else heading


def size(record: Record) -> str:
    """The scale, and how many runs each arm had."""
    runs = "" if record.replicas is None else f", {record.replicas} run{'' if record.replicas == 1 else 's'}"
    return f"{record.scale} scale{runs}"


def facts(record: Record) -> list[tuple[str, str]]:
    """Everything needed to reproduce the result, as pairs of a heading and a text."""
    time = duration(record.seconds) + (" since it was resumed" if record.resumed else "")
    files = sorted(f"{record.folder.name}/{path.name}" for path in record.folder.glob("*.csv"))
    pairs = [
        ("size", size(record)),
        ("settings", ", ".join(f"{name} = {_plain(value)}" for name, value in record.settings.items())),
        ("seed", str(record.seed)),
        ("time", time),
        ("date", record.date.replace("T", " ").replace("+00:00", " UTC")),
        ("hardware", record.hardware or record.device),
        ("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
        ("numbers", ", ".join(files)),
    ]
    return [(heading, text) for heading, text in pairs if text]


def _plain(value: Any) -> str:
    return f"({', '.join(map(_plain, value))})" if isinstance(value, list) else str(value)
