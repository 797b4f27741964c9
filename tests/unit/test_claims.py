"""Verdicts: what an interval over runs decides, and how often it is wrong."""

import math

import numpy as np
import pytest

from holonom.experiments.claims import FAILS, HOLDS, OPEN, best, fact, greater, mean_and_half_width, most, near

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
    assert claim.measured == pytest.approx(0.1, abs=0.02)
    assert greater("a", "b", common, common + 0.1 + 0.01 * rng.normal(size=8)).verdict == FAILS
    assert greater("a", "b", common + 0.1 + 0.01 * rng.normal(size=8), common, margin=0.1).verdict == OPEN


@pytest.mark.parametrize("rounding", [0.0, 1e-7])
@pytest.mark.parametrize(("runs", "verdict"), [(2, OPEN), (5, OPEN), (6, HOLDS)])
def test_a_few_equal_differences_prove_nothing(runs, verdict, rounding):
    winner = 0.25 + rounding * np.arange(runs)
    assert greater("a", "b", winner, np.full(runs, 0.24)).verdict == verdict
    assert best("a", "b", {"a": winner, "b": np.full(runs, 0.24)}, "a").verdict == verdict


def test_greater_leaves_out_and_counts_what_diverged():
    claim = greater("a", "b", [1.0, 1.1, math.nan], [0.0, 0.2, 0.0])
    assert "2 runs, 1 diverged" in claim.detail
    assert greater("a", "b", [math.nan], [0.0]).verdict == OPEN


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
    assert claim.measured == hits / runs
    assert claim.uncertainty > 0


def test_most_has_the_exact_binomial_interval():
    """All of n: the lower end is (0.025)^(1/n)."""
    claim = most("a", "b", [1.0] * 6 + [math.nan])
    assert claim.measured - claim.uncertainty == pytest.approx(0.025 ** (1 / 6))
    assert "6 of 6 runs" in claim.detail
    assert "1 diverged" in claim.detail
    assert most("a", "b", [math.nan]).verdict == OPEN


def test_best_fails_behind_any_rival_and_needs_to_lead_all():
    noise = 0.01 * np.random.default_rng(0).normal(size=(3, 6))
    arms = {"a": 1 + noise[0], "b": 0.5 + noise[1], "c": 0.9 + noise[2]}
    assert best("a", "b", arms, "a").verdict == HOLDS
    assert "nearest c" in best("a", "b", arms, "a").detail
    assert best("a", "b", arms, "c").verdict == FAILS
    assert best("a", "b", arms, "b", lowest=True).verdict == HOLDS


def test_near_has_three_answers():
    values = np.array([0.99, 1.0, 1.01, 1.0])
    assert near("a", "b", values, 1.0, 0.05).verdict == HOLDS
    assert near("a", "b", values, 2.0, 0.05).verdict == FAILS
    assert near("a", "b", values, 1.05, 0.05).verdict == OPEN
    diverged = near("a", "b", [*values, math.nan], 1.0, 0.05)
    assert diverged.verdict == HOLDS
    assert "4 runs, 1 diverged" in diverged.detail
    assert near("a", "b", [math.nan], 1.0, 0.05).verdict == OPEN


def test_a_fact_has_no_third_answer_and_json_has_no_nan():
    assert fact("a", "b", 1.0, False).verdict == FAILS
    assert most("a", "b", [math.nan]).as_json()["measured"] is None
