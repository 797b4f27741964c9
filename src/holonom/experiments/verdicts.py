"""What an interval decides about a claim, with or without a published size of the effect."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

HOLDS, DIRECTION, NO_EFFECT = "holds", "holds in direction", "no such effect"
OPEN, FAILS, UNJUDGED = "undecided", "does not hold", "not judged"
VERDICTS = (HOLDS, DIRECTION, NO_EFFECT, OPEN, FAILS, UNJUDGED)
CONFIDENCE = 0.95
FALSE_HOLD = (1 - CONFIDENCE) / 2  # the chance that an untrue claim is found to hold


class Size(NamedTuple):
    """A published difference in favour of the claim, and its error where one is given."""

    difference: float
    error: float = 0.0
    ascending: bool = False  # the smaller number is named first


def judge(low: float, high: float, size: Size | None = None) -> str:
    """The verdict on a margin that is claimed to be positive, by its interval from ``low`` to ``high``.

    With a published size d > 0: all of the interval is positive and reaches d, *holds*; positive but below d, *holds
    in direction*; it contains 0 but not d, *no such effect*; both, *undecided*; all of it is negative, *does not
    hold*. The published error widens d. An interval wholly above d holds, too.
    """
    if math.isnan(low) or math.isnan(high):
        return OPEN
    if high < 0:
        return FAILS
    reaches = size is None or high >= size.difference - size.error
    if low > 0:
        return HOLDS if reaches else DIRECTION
    return OPEN if reaches else NO_EFFECT


_NUMBER = r"(\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))? ?(%?)"
_PAIR = re.compile(rf"{_NUMBER}(?: against |, next | to )(?:(\d+(?:\.\d+)?) × )?{_NUMBER}")


def published_size(text: str) -> Size | None:
    """The size in a published statement: "87.63 ± 0.04 against 87.39 %", "6.08, next 8.73", "7.3 against 2 × 3.5".

    Numbers with a % sign are turned into shares; a claim about percentages gives numbers without it.
    """
    found = _PAIR.fullmatch(text)
    if found is None:
        return None
    first, first_error, sign, factor, second, second_error, other_sign = found.groups()
    scale = 0.01 if sign or other_sign else 1.0
    times = float(factor or 1)
    error = math.hypot(float(first_error or 0), times * float(second_error or 0))
    difference = float(first) - times * float(second)
    return Size(scale * abs(difference), scale * error, difference < 0)
