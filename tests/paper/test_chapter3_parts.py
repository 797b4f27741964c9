"""What chapter 3's experiments are built from: grids as one program, starts, and the statistics of curves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from holonom import presets
from holonom.experiments.run import Fit
from holonom.experiments.setups.perceptrons.tables import split
from holonom.experiments.setups.planar.hidden_weights import snapshot
from holonom.experiments.setups.planar.methods import grid, number, sgld, steps_to, temperature_of
from holonom.experiments.setups.planar.problem import TWO_TURNS, Problem, problem
from holonom.experiments.studies.fig3_13 import _rise
from holonom.experiments.studies.fig3_16 import _started

from .small import small_run


def make_problem(folder: Path) -> Problem:
    return problem(small_run(folder), TWO_TURNS, train=50, test=40, hidden=5, percent=10)


def curve(metric: str, *runs: list[float]) -> Fit:
    values = np.array(runs).T
    nobody: Any = None
    return Fit("arm", np.arange(len(values)) * 10, {metric: values}, nobody, 0.0)


def test_a_cell_of_a_grid_is_the_method_at_that_setting(tmp_path: Path) -> None:
    task = make_problem(tmp_path)
    points = [{"lr": h, "temperature": temperature_of(noise)} for h, noise in ((0.1, 0.0), (0.4, 0.05))]
    cells = task.fit("grid", grid(presets.sgld, points), 30, repeats=2).split(["first", "second"])
    alone = task.fit("alone", sgld(0.4, 0.05), 30)
    np.testing.assert_allclose(cells["second"].curves["test_loss"], alone.curves["test_loss"], rtol=1e-5)
    assert not np.allclose(cells["first"].curves["test_loss"][1:], alone.curves["test_loss"][1:])


def test_sgld_noise_is_the_thesis_formula(tmp_path: Path) -> None:
    """θ ← θ + hG + σ√h R (3.11): with no gradient a step's standard deviation is σ√h."""
    task = problem(small_run(tmp_path), TWO_TURNS, train=50, test=40, hidden=2000, percent=10)
    ensemble = task.ensemble()
    before = [p.detach().clone() for p in ensemble.parameters()]
    optimizer = sgld(0.25, 0.1)(ensemble)
    for p in ensemble.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    moved = torch.cat([(p.detach() - q).flatten() for p, q in zip(ensemble.parameters(), before, strict=True)])
    expected, error = 0.1 * 0.25**0.5, 0.05 / (2 * moved.numel()) ** 0.5
    assert abs(float(moved.std()) - expected) < 5 * error


def test_the_starts_of_the_map_lie_one_after_the_other(tmp_path: Path) -> None:
    zero, gaussian, built = dict(_started(make_problem(tmp_path), 3).named_parameters())["0.weight"].tensor_split(3)
    assert not zero.any()
    assert 0 < gaussian.abs().max() < 0.06
    assert built.abs().max() > 0.3
    assert torch.equal(gaussian[:2], gaussian[2:4]), "cells share the runs' initial weights"


def test_steps_to_a_level() -> None:
    fit = curve("test_accuracy", [0.5, 0.91, 0.8, 0.95], [0.5, 0.6, 0.7, 0.8])
    np.testing.assert_array_equal(steps_to(fit, 0.9), [10, np.nan])


def test_rise_of_a_loss() -> None:
    falls, turns = [1.0, 0.5, 0.25, 0.125], [1.0, 0.5, 0.25, 0.75]
    np.testing.assert_allclose(_rise(curve("test_loss", falls, falls)), [0, 0])
    np.testing.assert_allclose(_rise(curve("test_loss", turns, turns)), [0.5, 0.5])


def test_active_parameters(tmp_path: Path) -> None:
    ensemble = make_problem(tmp_path).ensemble()
    with torch.no_grad():
        for p in ensemble.parameters():
            p.fill_(0.049)
        dict(ensemble.named_parameters())["0.bias"][1] = -0.051
    np.testing.assert_allclose(snapshot(ensemble, np.zeros(2)).active(), [0, 1 / 3])


def test_every_run_holds_out_rows_of_its_own(tmp_path: Path) -> None:
    rows = torch.arange(100.0)[:, None]
    table: Any = SimpleNamespace(numbers=lambda: rows, labels=torch.arange(100))
    x, y, x_test, y_test = split(small_run(tmp_path), table, None)
    assert (x.shape, x_test.shape) == ((2, 80, 1), (2, 20, 1))
    assert torch.equal(x.squeeze(-1).long(), y)
    for train, test in zip(y, y_test, strict=True):
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(100))
    assert not torch.equal(y_test[0], y_test[1])


def test_numbers_as_people_write_them() -> None:
    assert [number(x) for x in (0.0, 1e-8, 1e-5, 3e-3, 0.04)] == ["0", "1e-8", "1e-5", "3e-3", "0.04"]
