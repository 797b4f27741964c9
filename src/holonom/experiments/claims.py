"""Claims: a statistic, the published value, a test with its uncertainty, a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

HOLDS, FAILS, OPEN = "holds", "does not hold", "inconclusive"
CONFIDENCE = 0.95
MIN_EQUAL = 6  # runs: six fair coins show the same side with a probability below 5 %


@dataclass(frozen=True)
class Claim:
    """One statement of a paper and its measurement.

    ``measured`` and ``uncertainty`` are numbers in the same unit (the half width of a 95 % interval
    unless ``detail`` says otherwise).
    """

    name: str
    published: str
    measured: float
    uncertainty: float
    verdict: str
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        return {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in asdict(self).items()}


def mean_and_half_width(values: ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Mean and the half width of its Student-t interval; infinite for a single run."""
    from scipy.stats import t

    x = np.asarray(values, dtype=float)
    if len(x) < 2:
        return float(x.mean()), math.inf
    half = float(t.ppf((1 + confidence) / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return float(x.mean()), half


def interval(differences: ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The same for differences of two arms, but infinite for a few equal ones.

    Accuracies come in steps of one test example, so two or three differences can be equal by chance, and
    Student's interval then has no width.
    """
    x = np.asarray(differences, dtype=float)
    if not len(x):
        return math.nan, math.inf
    mean, half = mean_and_half_width(x, confidence)
    alike = float(np.ptp(x)) <= 1e-4 * abs(mean)
    return mean, math.inf if alike and len(x) < MIN_EQUAL else half


def decide(mean: float, half_width: float) -> str:
    """The verdict on a mean that is claimed to be positive."""
    if not (math.isfinite(mean) and math.isfinite(half_width)):
        return OPEN
    return HOLDS if mean > half_width else FAILS if mean < -half_width else OPEN


def greater(name: str, published: str, larger: ArrayLike, smaller: ArrayLike, margin: float = 0.0) -> Claim:
    """``larger`` exceeds ``smaller`` by more than ``margin``: the mean paired difference and its 95 % interval.

    Runs are paired because arms share their seeds: initial weights, data and noise. Runs that diverged in either
    arm (not finite) are left out and counted.
    """
    a, b = np.asarray(larger, dtype=float), np.asarray(smaller, dtype=float)
    good = np.isfinite(a) & np.isfinite(b)
    difference = (a - b)[good] - margin
    mean, half = interval(difference)
    detail = f"{a[good].mean():.4g} against {b[good].mean():.4g}, {int(good.sum())} runs" if good.any() else "no runs"
    if not good.all():
        detail += f", {int((~good).sum())} diverged"
    return Claim(name, published, mean + margin, half, decide(mean, half), detail)


def most(name: str, published: str, flags: ArrayLike) -> Claim:
    """More than half of the runs have a property: their share and its exact binomial interval.

    Few runs are not enough: even if all of five have it, the interval reaches below one half.
    Runs that diverged (not finite) are left out and counted.
    """
    from scipy.stats import binomtest

    flagged = np.asarray(flags, dtype=float)
    good = flagged[np.isfinite(flagged)]
    lost = f", {len(flagged) - len(good)} diverged" if len(good) < len(flagged) else ""
    if not len(good):
        return Claim(name, published, math.nan, math.inf, OPEN, f"no runs{lost}")
    hits, share = int(good.sum()), float(good.mean())
    low, high = binomtest(hits, len(good)).proportion_ci(CONFIDENCE)
    verdict = HOLDS if low > 0.5 else FAILS if high < 0.5 else OPEN
    detail = f"{hits} of {len(good)} runs, between {low:.2g} and {high:.2g}{lost}"
    return Claim(name, published, share, max(share - low, high - share), verdict, detail)


def best(name: str, published: str, arms: Mapping[str, ArrayLike], winner: str, lowest: bool = False) -> Claim:
    """``winner`` beats every other arm; the measured number is its lead over the nearest rival.

    Holds if it leads each rival beyond a Bonferroni-corrected interval, fails if it is beyond one
    behind any of them.
    """
    sign = -1.0 if lowest else 1.0
    leader = np.asarray(arms[winner], dtype=float)
    rivals = {arm: np.asarray(values, dtype=float) for arm, values in arms.items() if arm != winner}
    confidence = 1 - (1 - CONFIDENCE) / len(rivals)
    leads = {}
    for arm, values in rivals.items():
        difference = sign * (leader - values)
        difference = difference[np.isfinite(difference)]
        leads[arm] = interval(difference, confidence)
    verdicts = [decide(*lead) for lead in leads.values()]
    verdict = FAILS if FAILS in verdicts else HOLDS if all(v == HOLDS for v in verdicts) else OPEN
    nearest = min(leads, key=lambda arm: leads[arm][0] if math.isfinite(leads[arm][0]) else math.inf)
    behind = ", ".join(f"{arm} {np.nanmean(v):.4g}" for arm, v in rivals.items())
    detail = f"{winner} {np.nanmean(leader):.4g}; {behind}; nearest {nearest}, {len(leader)} runs"
    return Claim(name, published, *leads[nearest], verdict, detail)


def near(name: str, published: str, values: ArrayLike, target: float, tolerance: float) -> Claim:
    """The mean is ``target`` to within ``tolerance``: holds if its interval lies inside, fails if it lies outside.

    Runs that diverged (not finite) are left out and counted.
    """
    x = np.asarray(values, dtype=float)
    good = x[np.isfinite(x)]
    mean, half = mean_and_half_width(good) if len(good) else (math.nan, math.inf)
    gap = abs(mean - target)
    verdict = HOLDS if gap + half <= tolerance else FAILS if gap - half > tolerance else OPEN
    lost = f", {len(x) - len(good)} diverged" if len(good) < len(x) else ""
    return Claim(name, published, mean, half, verdict, f"within {tolerance:g} of {target:g}, {len(good)} runs{lost}")


def fact(name: str, published: str, measured: float, holds: bool, uncertainty: float = 0.0, detail: str = "") -> Claim:
    """A claim about a number without sampling error, such as an eigenvalue."""
    return Claim(name, published, measured, uncertainty, HOLDS if holds else FAILS, detail)
