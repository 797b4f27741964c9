"""Claims: what was published, what was measured, the margin by which the claim is true, and a verdict.

A run that diverged counts, against the arm that diverged. Where the metric has a chance level, the run has that level.
Elsewhere it has the worst rank: the claim is then about the median of the differences, which needs no finite values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .verdicts import CONFIDENCE, FAILS, HOLDS, OPEN, UNJUDGED, Size, judge, published_size

MIN_EQUAL = 6  # runs: six fair coins show the same side with a probability below 5 %
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Claim:
    """One statement of a paper and its measurement.

    Attributes:
        published: what the paper says.
        value: what was measured, in words.
        margin: by how much the claim is true; negative if it is not. NaN where a claim has none.
        low, high: the 95 % interval of the margin.
        size: the published margin, if there is one; ``size_error`` is its error.
        exact: nothing was sampled, so there is no interval.
    """

    name: str
    published: str
    value: str
    margin: float
    low: float
    high: float
    verdict: str
    size: float | None = None
    size_error: float = 0.0
    exact: bool = False
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        """An end of the interval that is infinite is null."""
        return {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in asdict(self).items()}

    def unjudged(self) -> Claim:
        """Without its verdict: runs that are too small to have one."""
        return replace(self, verdict=UNJUDGED)


class Interval(NamedTuple):
    """A mean or median, and the ends of its interval."""

    middle: float
    low: float
    high: float


def mean_and_half_width(values: ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Mean and the half width of its Student-t interval; infinite for a single run."""
    from scipy.stats import t

    x = np.asarray(values, dtype=float)
    if len(x) < 2:
        return float(x.mean()), math.inf
    half = float(t.ppf((1 + confidence) / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return float(x.mean()), half


def mean_interval(differences: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Of the mean, after Student; infinite for a few equal values.

    Accuracies come in steps of one test example, so two or three differences can be equal by chance, and
    Student's interval then has no width.
    """
    x = np.asarray(differences, dtype=float)
    if not len(x):
        return Interval(math.nan, -math.inf, math.inf)
    mean, half = mean_and_half_width(x, confidence)
    alike = float(np.ptp(x)) <= 1e-4 * abs(mean)
    half = math.inf if alike and len(x) < MIN_EQUAL else half
    return Interval(mean, mean - half, mean + half)


def median_interval(differences: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Of the median, between two order statistics: right for heavy tails and for infinite values.

    Fewer than six values have none.
    """
    from scipy.stats import binom

    x = np.sort(np.asarray(differences, dtype=float))
    if not len(x):
        return Interval(math.nan, -math.inf, math.inf)
    below = x[(len(x) - 1) // 2], x[len(x) // 2]
    middle = float(below[0]) if below[0] == below[1] else float(np.mean(below))
    rank = int(binom.ppf((1 - confidence) / 2, len(x), 0.5))  # the first whose tail is too large
    if binom.cdf(rank, len(x), 0.5) <= (1 - confidence) / 2:
        rank += 1
    return Interval(middle, float(x[rank - 1]), float(x[-rank])) if rank else Interval(middle, -math.inf, math.inf)


def paired(larger: ArrayLike, smaller: ArrayLike, diverged: float, by: str, confidence: float) -> Interval:
    """The interval of ``larger`` − ``smaller``, run by run: of the mean, or of the median.

    Runs are paired because arms share their seeds: initial weights, data and noise. A run that is not finite counts
    as ``diverged``. If that is infinite, the interval is that of the median.
    """
    a, b = (np.asarray(x, dtype=float) for x in (larger, smaller))
    a, b = (np.where(np.isfinite(x), x, diverged) for x in (a, b))
    with np.errstate(invalid="ignore"):
        difference = np.where(a == b, 0.0, a - b)  # two that diverged are equal
    robust = by == "median" or not np.isfinite(difference).all()
    return (median_interval if robust else mean_interval)(difference, confidence)


def greater(
    name: str,
    published: str,
    larger: ArrayLike,
    smaller: ArrayLike,
    margin: float = 0.0,
    *,
    diverged: float = -math.inf,
    by: str = "mean",
    size: Size | None = None,
    note: str = "",
) -> Claim:
    """``larger`` exceeds ``smaller`` by more than ``margin``, run by run.

    Args:
        diverged: what a run that is not finite counts as: the lowest of all for accuracies, math.inf for losses, or a
            chance level.
        by: "mean", with Student's interval, or "median", with that of the order statistics, for heavy tails.
        size: the published difference; taken from ``published`` if that says "A against B".
        note: a remark for the row.
    """
    a, b = np.asarray(larger, dtype=float), np.asarray(smaller, dtype=float)
    middle, low, high = (x - margin for x in paired(a, b, diverged, by, CONFIDENCE))
    size = published_size(published) if size is None else size
    size = None if size is None else size._replace(difference=size.difference - margin)
    detail = [_runs(len(a)), *_about(by, np.isfinite(a) & np.isfinite(b), diverged)]
    detail += [f"required: more than {margin:g}"] if margin else []
    pair = [_middle(a, by), _middle(b, by)]
    value = " against ".join(reversed(pair) if size is not None and size.ascending else pair) if len(a) else ""
    return _claim(name, published, value, Interval(middle, low, high), size, [*detail, note])


def most(name: str, published: str, flags: ArrayLike) -> Claim:
    """More than half of the runs have a property: their share, less one half, and its exact binomial interval.

    Few runs are not enough: even if all of five have it, the interval reaches below one half.
    A run that diverged has no property.
    """
    return _share(name, published, flags, 0.5, 1.0)


def some(name: str, published: str, flags: ArrayLike, least: float = 0.05, most: float = 1.0) -> Claim:
    """A share of the runs between ``least`` and ``most`` has a property: *some*, and with ``most`` < 1 *not all*."""
    return _share(name, published, flags, least, most)


def _share(name: str, published: str, flags: ArrayLike, least: float, most: float) -> Claim:
    from scipy.stats import binomtest

    flagged = np.asarray(flags, dtype=float)
    good = np.isfinite(flagged)
    if not len(flagged):
        return Claim(name, published, "", math.nan, -math.inf, math.inf, OPEN, detail="no runs")
    hits = int(flagged[good].sum())
    share = hits / len(flagged)
    low, high = binomtest(hits, len(flagged)).proportion_ci(CONFIDENCE)
    inside = Interval(share - least, low - least, high - least)
    if most < 1.0:  # the nearer bound decides
        inside = Interval(*map(min, inside, (most - share, most - high, most - low)))
    wanted = f"share above {least:g}" + (f" and below {most:g}" if most < 1 else "")
    detail = [f"share between {low:.2g} and {high:.2g}", f"claimed: {wanted}", *_about("mean", good, 0.0)]
    return _claim(name, published, f"{hits} of {len(flagged)} runs", inside, None, detail)


def best(
    name: str,
    published: str,
    arms: Mapping[str, ArrayLike],
    winner: str,
    lowest: bool = False,
    *,
    by: str = "mean",
    size: Size | None = None,
    note: str = "",
) -> Claim:
    """``winner`` beats every other arm; the margin is its lead over the nearest rival.

    No rival is chosen: it holds if it leads each of them beyond a Bonferroni-corrected interval, and fails if it is
    beyond one behind any of them. A run that diverged is the worst of all.
    """
    sign, diverged = (-1.0, math.inf) if lowest else (1.0, -math.inf)
    values = {arm: np.asarray(x, dtype=float) for arm, x in arms.items()}
    rivals = {arm: x for arm, x in values.items() if arm != winner}
    confidence = 1 - (1 - CONFIDENCE) / len(rivals)
    leads = {arm: paired(sign * values[winner], sign * x, sign * diverged, by, confidence) for arm, x in rivals.items()}
    nearest = min(leads, key=lambda arm: leads[arm].middle if not math.isnan(leads[arm].middle) else math.inf)
    size = published_size(published) if size is None else size
    verdicts = [judge(lead.low, lead.high) for lead in leads.values()]
    others = ", ".join(f"{arm} {_middle(x, by)}" for arm, x in rivals.items() if arm != nearest)
    good = np.all([np.isfinite(x) for x in values.values()], 0)
    value = f"{_middle(values[winner], by)} against {_middle(rivals[nearest], by)} ({nearest})"
    detail = [_runs(len(values[winner])), *_about(by, good, diverged), others and f"others: {others}", note]
    claim = _claim(name, published, value, leads[nearest], size, detail)
    if FAILS in verdicts:
        return replace(claim, verdict=FAILS)
    return replace(claim, verdict=OPEN) if claim.low > 0 and OPEN in verdicts else claim


def near(
    name: str, published: str, values: ArrayLike, target: float, tolerance: float, of: str = "run", note: str = ""
) -> Claim:
    """The mean is ``target`` to within ``tolerance``: holds if its interval lies inside, fails if it lies outside.

    The margin is the mean less the target. With a run that diverged the claim is about the median, and the run lies
    outside on both sides.
    """
    x = np.asarray(values, dtype=float)
    good = np.isfinite(x)
    if good.all():
        mean, half = mean_and_half_width(x) if len(x) else (math.nan, math.inf)
        off = Interval(mean - target, mean - half - target, mean + half - target)
        value = f"{mean:.4g}"
    else:
        below, above = (median_interval(np.where(good, x, end)) for end in (-math.inf, math.inf))
        off = Interval(above.middle - target, below.low - target, above.high - target)
        value = _middle(x, "median")
    inside = -tolerance <= off.low and off.high <= tolerance
    outside = off.low > tolerance or off.high < -tolerance
    verdict = HOLDS if inside else FAILS if outside else OPEN
    detail = [f"within {tolerance:g} of {target:g}", _runs(len(x), of), *_about("mean", good, math.inf), note]
    return Claim(name, published, value, *off, verdict, detail=", ".join(filter(None, detail)))


def fact(name: str, published: str, measured: float, holds: bool, detail: str = "") -> Claim:
    """A claim about a number without sampling error, such as an eigenvalue. Not for anything random."""
    verdict = HOLDS if holds else FAILS
    return Claim(name, published, f"{measured:.4g}", math.nan, math.nan, math.nan, verdict, exact=True, detail=detail)


def _claim(name: str, published: str, value: str, found: Interval, size: Size | None, detail: list[str]) -> Claim:
    if size is not None and size.difference <= 0:  # nothing to be reached
        size = None
    if size is not None and found.low > size.difference + size.error and math.isfinite(found.low):
        detail = [*detail, "more than published"]
    verdict = judge(found.low, found.high, size)
    difference, error, _ = size or (None, 0.0, False)
    words = ", ".join(filter(None, detail))
    return Claim(name, published, value, *found, verdict, size=difference, size_error=error, detail=words)


def _runs(count: int, of: str = "run") -> str:
    return f"{count} {of}{'' if count == 1 else 's'}" if count else "no runs"


def _middle(x: Array, by: str) -> str:
    good = x[np.isfinite(x)]
    return f"{(np.median if by == 'median' else np.mean)(good):.4g}" if len(good) else "diverged"


def _about(by: str, good: Array, diverged: float) -> list[str]:
    """How the runs were counted."""
    lost = int((~good).sum())
    words = ["medians"] if by == "median" or (lost and not math.isfinite(diverged)) else []
    return [*words, *([f"{lost} diverged"] if lost else [])]
