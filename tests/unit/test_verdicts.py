"""What an interval decides, and which size a published statement has."""

import math

import pytest

from holonom.experiments.verdicts import DIRECTION, FAILS, HOLDS, NO_EFFECT, OPEN, Size, judge, published_size


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.5, 1.5, HOLDS),  # positive and contains d = 1
        (1.2, 1.5, HOLDS),  # wholly above d
        (0.2, 0.8, DIRECTION),
        (-0.2, 0.8, NO_EFFECT),
        (-0.2, 1.2, OPEN),
        (-0.8, -0.2, FAILS),
        (-math.inf, math.inf, OPEN),
        (-math.inf, 0.5, NO_EFFECT),
        (-math.inf, -0.5, FAILS),
        (math.nan, math.nan, OPEN),
    ],
)
def test_an_interval_is_compared_with_nothing_and_with_the_published_size(low, high, verdict):
    assert judge(low, high, Size(1.0)) == verdict


@pytest.mark.parametrize(("low", "high", "verdict"), [(0.1, 0.2, HOLDS), (-0.1, 0.2, OPEN), (-0.2, -0.1, FAILS)])
def test_without_a_published_size_there_are_three_verdicts(low, high, verdict):
    assert judge(low, high) == verdict


def test_the_published_error_widens_the_size():
    assert judge(0.2, 0.8, Size(1.0)) == DIRECTION
    assert judge(0.2, 0.8, Size(1.0, 0.3)) == HOLDS
    assert judge(-0.2, 0.8, Size(1.0, 0.3)) == OPEN


@pytest.mark.parametrize(
    ("text", "difference", "error"),
    [
        ("87.63 against 87.39 %", 0.0024, 0.0),
        ("87.63 ± 0.04 against 87.39 ± 0.03 %", 0.0024, 0.0005),
        ("91.7 % against 81 %", 0.107, 0.0),
        ("0.386 against 0.824", 0.438, 0.0),
        ("6.08, next 8.73", 2.65, 0.0),
        ("15.2 to 7.3", 7.9, 0.0),
        ("15.2 against 2 × 5.9", 3.4, 0.0),
    ],
)
def test_a_published_pair_has_a_size(text, difference, error):
    assert published_size(text)[:2] == pytest.approx((difference, error))


@pytest.mark.parametrize("text", ["higher (figure)", "84 %", "near 100 % against chance", "6.08, next 8.73 by (4.60)"])
def test_other_statements_have_none(text):
    assert published_size(text) is None
