"""Formats results as text, for the page and the terminal."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..experiments.claims import Claim
from ..experiments.verdicts import DIRECTION, FAILS, FALSE_HOLD, HOLDS, NO_EFFECT, OPEN, UNJUDGED
from .record import Record, Table

CLAIM_HEADINGS = ("claim", "published", "value", "margin (95 %)", "verdict")
NONE = "–"  # no number
_MINUS = re.compile(r"(?<!\w)-(?=\d)")
_COUNTED = {
    HOLDS: ("holds", "hold"),
    DIRECTION: ("holds in direction", "hold in direction"),
    NO_EFFECT: ("finds no such effect", "find no such effect"),
    OPEN: ("undecided",) * 2,
    FAILS: ("does not hold", "do not hold"),
    UNJUDGED: ("not judged, because the scale is smoke",) * 2,
}


def margin(claim: Claim) -> str:
    """By how much a claim is true, with its interval, rounded to two digits of the latter."""
    value, low, high = claim.margin, claim.low, claim.high
    if not math.isfinite(value):
        return NONE
    if not (math.isfinite(low) or math.isfinite(high)):
        return _typeset(f"{value:.4g}, no interval")
    below, above = value - low, high - value
    if max(below, above) <= 0:
        return _typeset(f"{value:.4g}")
    if not math.isclose(below, above, rel_tol=1e-3, abs_tol=1e-12):
        return _typeset(f"{value:.3g} ({_end(low)} to {_end(high)})")
    decimals = 1 - math.floor(math.log10(above))
    if decimals > 6:
        return _typeset(f"{value:.3g} ± {above:.2g}")
    shown = max(decimals, 0)
    rounded = round(value, decimals) + 0.0  # turns -0.0 into 0.0
    return _typeset(f"{rounded:.{shown}f} ± {round(above, decimals):.{shown}f}")


def _end(value: float) -> str:
    return f"{value:.3g}".replace("inf", "∞")


def published_margin(claim: Claim) -> str:
    """The published size of the margin, if there is one."""
    if claim.size is None:
        return ""
    error = f" ± {claim.size_error:.2g}" if claim.size_error else ""
    return f"{claim.size:.3g}{error}"


def _typeset(text: str) -> str:
    return text.replace("-", "−")


def claim_row(claim: Claim) -> tuple[str, str, str, str, str]:
    """A claim as one row below :data:`CLAIM_HEADINGS`."""
    return claim.name, claim.published, _MINUS.sub("−", claim.value), margin(claim), claim.verdict


def false_discoveries(claims: Iterable[Claim]) -> str:
    """How many of the claims found to hold may be untrue: a bound that needs no independence of the claims."""
    sampled = [claim for claim in claims if not claim.exact and claim.verdict != UNJUDGED]
    held = sum(claim.verdict in (HOLDS, DIRECTION) for claim in sampled)
    if not held:
        return ""
    expected = FALSE_HOLD * len(sampled)
    return (
        f"An untrue claim is found to hold with a probability of at most {100 * FALSE_HOLD:g} %. If none of the "
        f"{len(sampled)} sampled claims of this page were true, at most {expected:.1f} of them would be expected to "
        f"hold, at least in direction; {held} do: a false discovery rate of at most "
        f"{min(100.0, 100 * expected / held):.2g} %."
    )


def cell(value: Any) -> str:
    """The text of a table cell."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NONE
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
    """4 claims: 2 hold, 1 does not hold, 1 undecided."""
    count = Counter(claim.verdict for claim in claims)
    parts = [f"{count[verdict]} {words[count[verdict] != 1]}" for verdict, words in _COUNTED.items() if count[verdict]]
    total = sum(count.values())
    heading = f"{total} claim{'' if total == 1 else 's'}"
    return f"{heading}: {', '.join(parts)}" if parts else heading


def size(record: Record) -> str:
    """The scale, how many runs each arm had, and where it is not the published size."""
    runs = "" if record.replicas is None else f", {record.replicas} run{'' if record.replicas == 1 else 's'}"
    other = [_difference(*difference) for difference in record.other_than_published()]
    kind = " with other settings" if other and record.scale == "paper" else ""
    return f"{record.scale} scale{kind}{runs}" + (f": {', '.join(other)}" if other else "")


def _difference(name: str, here: Any, paper: Any) -> str:
    """epochs 15 instead of 100; of a long list the name alone."""
    texts = _plain(here), _plain(paper)
    return f"other {name}" if max(map(len, texts)) > 24 else f"{name} {texts[0]} instead of {texts[1]}"


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
        ("commit", record.commit),
        ("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
        ("numbers", ", ".join(files)),
    ]
    return [(heading, text) for heading, text in pairs if text]


def _plain(value: Any) -> str:
    return f"({', '.join(map(_plain, value))})" if isinstance(value, (list, tuple)) else str(value)
