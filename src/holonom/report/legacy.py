"""Claims as version 0.1 wrote them, judged again where their numbers allow it."""

from __future__ import annotations

import math
import re
from typing import Any

from ..experiments.claims import Claim
from ..experiments.verdicts import FAILS, HOLDS, OPEN, Size, judge, published_size

_VERDICTS = {"holds": HOLDS, "does not hold": FAILS, "inconclusive": OPEN}
_NEAR = re.compile(r"within (\S+) of (\S+), \d+ runs")
_SHARE = re.compile(r"(\d+ of \d+ runs), between .*")
_GREATER = re.compile(r"(\S+ against \S+), (\d+ runs)")
# "More than twice" was measured against twice the smaller number, curvature not by the thesis's formula, and what is
# published of one setting stood beside another, chosen here.
_OTHERWISE = re.compile("twice|curvature|bends|own best settings|the grid's (best|lowest)")
_REQUIRED = re.compile(r"to \d+ %$|exceed|rises above")  # had a margin beside zero
_BEST = re.compile(r".* (\S+); (.*); nearest (.*), (\d+ runs)")


def upgrade(source: dict[str, Any], id: str, scale: str) -> Claim:
    """A claim of version 0.1 with value and margin.

    It had ``measured`` and ``uncertainty`` in one number and three verdicts. A verdict is kept, and the claim says so,
    where the stored numbers do not allow another.
    """
    known = _VERDICTS.get(source["verdict"])
    if known is None:
        raise ValueError(f"the claim {source['name']!r} has the unknown verdict {source['verdict']!r}")
    claim = _read(source, known, id)
    return claim.unjudged() if scale == "smoke" else claim


def _read(source: dict[str, Any], stored: str, id: str) -> Claim:
    name, published, detail = source["name"], source["published"], source["detail"]
    middle, half = (math.nan if source[key] is None else float(source[key]) for key in ("measured", "uncertainty"))
    half = math.inf if math.isnan(half) else half

    def made(
        value: str, margin: float, verdict: str, words: str, size: Size | None = None, exact: bool = False
    ) -> Claim:
        low, high = margin - half, margin + half
        difference, error, _ = size or (None, 0.0, False)
        return Claim(name, published, value, margin, low, high, verdict, difference, error, exact, words)

    if found := _NEAR.match(detail):
        return made(f"{middle:.4g}", middle - float(found[2]), stored, detail)
    if found := _SHARE.match(detail):
        return made(found[1], middle - 0.5, stored, detail)
    if half == 0 and "runs" not in detail:
        exact = id.startswith("fig1.")  # the only studies without randomness
        words = detail if exact else _joined(detail, "no interval was stored")
        return made(f"{middle:.4g}", math.nan, stored, words, exact=exact)
    if found := _GREATER.match(detail):
        value, words = found[1], detail[len(found[1]) + 2 :]
    elif found := _BEST.fullmatch(detail):
        rivals = dict(part.rsplit(" ", 1) for part in found[2].split(", ") if " " in part)
        value = f"{found[1]} against {rivals.get(found[3], '?')} ({found[3]})"
        words = f"{found[4]}, all: {found[2]}"
    else:
        return made(f"{middle:.4g}", math.nan, stored, _joined(detail, "the limit was not stored"))
    if "diverged" in detail:
        return made(value, middle, stored, _joined(words, "runs that diverged were left out"))
    if judge(middle - half, middle + half) != stored or _REQUIRED.search(name):
        return made(value, math.nan, stored, _joined(words, "judged by a margin that was not stored"))
    pair = published_size(published)
    if pair is not None and pair.ascending and " (" not in value:
        value = " against ".join(reversed(value.split(" against ")))
    size = None if _OTHERWISE.search(name) else pair
    return made(value, middle, judge(middle - half, middle + half, size), words, size)


def _joined(*words: str) -> str:
    return ", ".join(filter(None, words))
