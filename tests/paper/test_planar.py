"""Planar problems: grids as one ensemble, initial weights, penalties, saddles, and the statistics of curves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holonom import Ensemble, presets
from holonom.experiments.run import Fit
from holonom.experiments.setups.planar import spiral_depth
from holonom.experiments.setups.planar.hidden_weights import snapshot
from holonom.experiments.setups.planar.methods import format_number, grid, sgld, temperature_of
from holonom.experiments.setups.planar.problem import TWO_TURNS, Problem, problem
from holonom.experiments.setups.planar.saddles import count, saddles
from holonom.experiments.setups.shared.curves import steps_to
from holonom.experiments.studies.fig3_13 import _rise
from holonom.experiments.studies.fig3_16 import _started

from .small import small_run


def make_problem(folder: Path) -> Problem:
    return problem(small_run(folder), TWO_TURNS, train=50, test=40, hidden=5, percent=10)


def curve(metric: str, *runs: list[float]) -> Fit:
    values = np.array(runs).T
    no_ensemble: Any = None
    return Fit("arm", np.arange(len(values)) * 10, {metric: values}, no_ensemble, 0.0)


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


def test_numbers_are_written_as_usual() -> None:
    assert [format_number(x) for x in (0.0, 1e-8, 1e-5, 3e-3, 0.04)] == ["0", "1e-8", "1e-5", "3e-3", "0.04"]


def test_every_member_has_its_own_penalty() -> None:
    """∇λ‖WᵀW − I‖² = 4λ W(WᵀW − I), on hidden weights alone."""
    ensemble = Ensemble(lambda: spiral_depth.DeepPerceptron(3, penalised=True).double(), 2, repeats=2, seed=0)
    strengths = [0.0, 0.3]
    ensemble.get_buffer("strength").copy_(ensemble.spread(strengths))
    x, y = torch.randn(5, 2, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    gradients, _ = ensemble.gradients(spiral_depth.loss, x, y)
    parameters = dict(ensemble.named_parameters())
    for name in parameters:
        w = parameters[name].detach().numpy()[2:]
        pull = gradients[name].numpy()[2:] - gradients[name].numpy()[:2]
        hidden = name in ("body.2.weight", "body.4.weight")
        expected = 4 * 0.3 * w @ (w.transpose(0, 2, 1) @ w - np.eye(100)) if hidden else 0.0
        np.testing.assert_allclose(pull, expected, atol=1e-12)


def test_an_orthogonal_start_is_orthogonal_between_hidden_layers_only() -> None:
    model = spiral_depth.DeepPerceptron(4, orthogonal=True)
    for w in model.hidden_weights():
        torch.testing.assert_close(w.mT @ w, torch.eye(100), atol=1e-5, rtol=0)
    assert len(model.hidden_weights()) == 3
    assert model.body[0].weight.abs().max() <= 1 / math.sqrt(2)


def test_a_run_that_diverged_is_right_half_of_the_time() -> None:
    ensemble = Ensemble(lambda: spiral_depth.DeepPerceptron(2), 2, seed=0)
    with torch.no_grad():
        ensemble.get_parameter("body.0.weight")[1] = math.nan
    found = spiral_depth._metrics(ensemble, torch.randn(2, 8, 2), torch.ones(2, 8), "test")
    assert found["test_accuracy"][1] == 0.5
    assert found["test_loss"][0].isfinite()


def test_saddles_of_known_surfaces() -> None:
    x = torch.linspace(-1, 1, 9)
    a, b = torch.meshgrid(x, x, indexing="ij")
    centre = torch.zeros(7, 7, dtype=torch.bool)
    centre[3, 3] = True
    assert torch.equal(saddles(a * a - b * b), centre)
    assert torch.equal(saddles(torch.stack([a * b, -a * b])), torch.stack([centre, centre]))
    for without in (a * a + b * b, -a * a - b * b, 2 * a - b, torch.zeros(9, 9)):
        assert not saddles(without).any()
    assert not saddles(a * a - b * b, threshold=2.0).any()


def test_neighbouring_grid_points_are_one_saddle() -> None:
    found = torch.zeros(6, 6, dtype=torch.bool)
    assert count(found) == 0
    found[0, 0] = found[1, 1] = found[2, 1] = True
    assert count(found) == 1
    found[5, 5] = True
    assert count(found) == 2
