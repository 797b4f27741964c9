"""Verdicts: what an interval over runs decides, and how often it is wrong."""

import math

import numpy as np
import pytest

from holonom.experiments.claims import (
    best,
    fact,
    greater,
    mean_and_half_width,
    median_interval,
    most,
    near,
    some,
)
from holonom.experiments.verdicts import DIRECTION, FAILS, HOLDS, NO_EFFECT, OPEN, UNJUDGED

pytest.importorskip("scipy", reason="intervals come from scipy: pip install 'holonom[experiments]'")
SETS = 400


def test_interval_is_students():
    mean, half = mean_and_half_width([1.0, 2.0, 4.0])
    assert mean == pytest.approx(7 / 3)
    assert half == pytest.approx(4.302652729911275 * np.std([1, 2, 4], ddof=1) / math.sqrt(3))
    assert mean_and_half_width([5.0]) == (5.0, math.inf)


def test_greater_pairs_its_runs():
    rng = np.random.default_rng(0)
    common = 10 * rng.normal(size=8)
    claim = greater("a", "b", common + 0.1 + 0.01 * rng.normal(size=8), common)
    assert claim.verdict == HOLDS
    assert claim.margin == pytest.approx(0.1, abs=0.02)
    assert greater("a", "b", common, common + 0.1 + 0.01 * rng.normal(size=8)).verdict == FAILS
    assert greater("a", "b", common + 0.1 + 0.01 * rng.normal(size=8), common, margin=0.1).verdict == OPEN


@pytest.mark.parametrize("rounding", [0.0, 1e-7])
@pytest.mark.parametrize(("runs", "verdict"), [(2, OPEN), (5, OPEN), (6, HOLDS)])
def test_a_few_equal_differences_prove_nothing(runs, verdict, rounding):
    winner = 0.25 + rounding * np.arange(runs)
    assert greater("a", "b", winner, np.full(runs, 0.24)).verdict == verdict
    assert best("a", "b", {"a": winner, "b": np.full(runs, 0.24)}, "a").verdict == verdict


def test_the_published_size_decides_beside_zero():
    steady = 0.2 + 0.01 * np.random.default_rng(0).normal(size=8)
    zeros = np.zeros(8)
    assert greater("a", "0.5 against 0.3", steady, zeros).verdict == HOLDS
    assert greater("a", "0.9 against 0.3", steady, zeros).verdict == DIRECTION
    assert greater("a", "0.9 against 0.3", steady - 0.2, zeros).verdict == NO_EFFECT
    above = greater("a", "0.35 against 0.3", steady, zeros)
    assert above.verdict == HOLDS
    assert "more than published" in above.detail
    assert above.size == pytest.approx(0.05)
    assert best("a", "0.9, next 0.3", {"a": steady, "b": zeros, "c": zeros - 1}, "a").verdict == DIRECTION


def test_values_are_named_in_the_published_order():
    assert greater("a", "0.3 against 0.5", [4.0, 4.0], [1.0, 1.0]).value == "1 against 4"
    assert greater("a", "0.5 against 0.3", [4.0, 4.0], [1.0, 1.0]).value == "4 against 1"


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_run_that_diverged_counts_against_its_arm(lost):
    """Ten runs, of which four of one arm diverge: the median decides, and they have the worst rank."""
    ours, theirs = np.full(10, 0.9), np.full(10, 0.8)
    gone = np.arange(10) < 4
    assert greater("a", "b", np.where(gone, lost, ours), theirs).verdict == OPEN
    claim = greater("a", "b", ours, np.where(gone, lost, theirs))
    assert claim.verdict == HOLDS
    assert "10 runs, medians, 4 diverged" in claim.detail
    assert greater("a", "b", np.full(10, lost), theirs).verdict == FAILS
    losses = {"ours": np.where(gone, lost, 0.1 * ours), "theirs": 2 * theirs}
    assert greater("a", "b", losses["theirs"], losses["ours"], diverged=math.inf).verdict == OPEN
    assert best("a", "b", losses, "ours", lowest=True).verdict == OPEN
    assert best("a", "b", {**losses, "ours": 0.1 * ours}, "ours", lowest=True).verdict == HOLDS
    assert greater("a", "b", [lost] * 8, [lost] * 8).verdict == OPEN  # equal


def test_a_chance_level_keeps_the_mean():
    claim = greater("a", "b", [1.0, 1.1, math.nan, 0.9], [0.0, 0.2, 0.0, 0.1], diverged=0.5)
    assert claim.margin == pytest.approx(0.8)
    assert "4 runs, 1 diverged" in claim.detail


def test_nothing_measured_is_open():
    assert greater("a", "b", [math.nan], [0.0]).verdict == OPEN
    assert greater("a", "b", [], []).verdict == OPEN


def test_the_median_has_an_exact_interval_without_assumptions():
    """Between the second and the ninth of ten: 1 − 2·11/1024."""
    assert median_interval(np.arange(10.0)) == (4.5, 1.0, 8.0)
    assert median_interval(np.arange(6.0)) == (2.5, 0.0, 5.0)
    assert median_interval(np.arange(5.0)) == (2.0, -math.inf, math.inf)
    rng = np.random.default_rng(0)
    found = [median_interval(rng.standard_cauchy(15)) for _ in range(SETS)]
    missed = np.mean([not low <= 0 <= high for _, low, high in found])
    assert 0.005 < missed < 0.05 + 3 * math.sqrt(0.05 * 0.95 / SETS)


def test_heavy_tails_are_judged_by_the_median():
    """One run in twenty with a huge value drowns the mean, not the median."""
    bent, flat = np.full(20, 10.0) + np.arange(20), np.full(20, 5.0)
    flat[3] = 1e4
    assert greater("a", "b", bent, flat).verdict == OPEN
    claim = greater("a", "b", bent, flat, by="median")
    assert claim.verdict == HOLDS
    assert claim.value == "19.5 against 5"
    assert best("a", "b", {"flat": flat, "bent": bent}, "flat", lowest=True, by="median").verdict == HOLDS


@pytest.mark.parametrize("runs", [3, 10])
def test_a_claim_that_is_not_true_rarely_holds(runs):
    rng = np.random.default_rng(runs)
    wrong = [greater("a", "b", *rng.normal(size=(2, runs))).verdict != OPEN for _ in range(SETS)]
    assert np.mean(wrong) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / SETS)
    arms = [{name: rng.normal(size=runs) for name in "abcd"} for _ in range(SETS)]
    held = [best("a", "b", one, "a").verdict == HOLDS for one in arms]
    assert np.mean(held) < 0.05


@pytest.mark.parametrize(("hits", "runs", "verdict"), [
    (3, 3, OPEN), (0, 3, OPEN), (5, 5, OPEN), (6, 6, HOLDS), (0, 6, FAILS), (7, 10, OPEN), (9, 10, HOLDS),
    (1, 10, FAILS),
])  # fmt: skip
def test_most_needs_enough_runs(hits, runs, verdict):
    claim = most("a", "b", np.arange(runs) < hits)
    assert claim.verdict == verdict
    assert claim.margin == hits / runs - 0.5
    assert claim.value == f"{hits} of {runs} runs"
    assert claim.low < claim.high


def test_most_has_the_exact_binomial_interval_and_a_diverged_run_has_no_property():
    """All of n: the lower end is (0.025)^(1/n)."""
    assert most("a", "b", [1.0] * 6).low == pytest.approx(0.025 ** (1 / 6) - 0.5)
    claim = most("a", "b", [1.0] * 6 + [math.nan])
    assert claim.value == "6 of 7 runs"
    assert claim.verdict == OPEN
    assert "1 diverged" in claim.detail
    assert most("a", "b", [math.nan]).verdict == OPEN
    assert most("a", "b", []).verdict == OPEN


def test_some_is_a_share_between_two_bounds():
    def of(hits, runs, **bounds):
        return some("a", "b", np.arange(runs) < hits, **bounds).verdict

    assert (of(4, 10), of(1, 10), of(0, 10), of(0, 100)) == (HOLDS, OPEN, OPEN, FAILS)
    assert (of(4, 10, most=0.95), of(10, 10, most=0.95), of(100, 100, most=0.95)) == (HOLDS, OPEN, FAILS)


def test_best_fails_behind_any_rival_and_needs_to_lead_all():
    noise = 0.01 * np.random.default_rng(0).normal(size=(3, 6))
    arms = {"a": 1 + noise[0], "b": 0.5 + noise[1], "c": 0.9 + noise[2]}
    assert best("a", "b", arms, "a").verdict == HOLDS
    assert "(c)" in best("a", "b", arms, "a").value
    assert best("a", "b", arms, "c").verdict == FAILS
    assert best("a", "b", arms, "b", lowest=True).verdict == HOLDS


def test_near_has_three_answers():
    values = np.array([0.99, 1.0, 1.01, 1.0])
    assert near("a", "b", values, 1.0, 0.05).verdict == HOLDS
    assert near("a", "b", values, 2.0, 0.05).verdict == FAILS
    assert near("a", "b", values, 1.05, 0.05).verdict == OPEN
    claim = near("a", "b", values, 1.05, 0.05)
    assert (claim.value, claim.margin) == ("1", pytest.approx(-0.05))


def test_a_run_that_diverged_is_near_nothing():
    steady = [0.99, 1.0, 1.01, 1.0] * 5
    assert near("a", "b", [*steady, math.nan], 1.0, 0.05).verdict == HOLDS
    assert "1 diverged" in near("a", "b", [*steady, math.nan], 1.0, 0.05).detail
    assert near("a", "b", [*steady[:5], math.nan], 1.0, 0.05).verdict == OPEN
    assert near("a", "b", [math.nan] * 8, 1.0, 0.05).verdict == OPEN


def test_a_fact_has_no_third_answer_and_no_interval_and_json_has_no_nan():
    wrong = fact("a", "b", 1.0, False)
    assert (wrong.verdict, wrong.exact, wrong.value) == (FAILS, True, "1")
    assert wrong.as_json()["margin"] is None
    assert greater("a", "b", [math.nan] * 4, [0.0] * 4).as_json()["low"] is None


def test_an_unjudged_claim_keeps_its_numbers():
    claim = greater("a", "b", np.ones(6), np.zeros(6))
    assert claim.unjudged().verdict == UNJUDGED
    assert claim.unjudged().margin == claim.margin
