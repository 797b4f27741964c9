"""The landscape's experiments at their smallest size, and the statistics that they rest on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from holonom.experiments.setups.cifar.optimizers import STEP, dropped_twice
from holonom.experiments.setups.perceptrons.tasks import Task, on_spirals
from holonom.experiments.setups.planar.methods import adam
from holonom.experiments.setups.planar.problem import TWO_TURNS
from holonom.experiments.setups.planar.saddles import count, saddles
from holonom.experiments.setups.shared.loss_lines import Line, by_layer, line

from .small import check_smoke, need_data, small_run

IDS = ["fig3.3", "fig3.4", "fig3.5", "fig6.1A", "fig6.17"]


@pytest.mark.parametrize("id", IDS)
def test_smoke(id: str, tmp_path: Path) -> None:
    need_data(id)
    check_smoke(id, tmp_path)


def make_task(folder: Path) -> Task:
    return on_spirals(small_run(folder), "spiral", TWO_TURNS, (6, 5), points=40, percent=25)


def test_a_line_is_the_loss_of_mixed_weights_of_every_run(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    start, end = task.ensemble(), task.elsewhere()
    found = line(task, start, end, 3)
    with torch.no_grad():
        for p, q in zip(start.parameters(), end.parameters(), strict=True):
            p.copy_((p + q) / 2)
        half = start.losses(task.loss, task.x_test, task.y_test, shared=False)
    np.testing.assert_allclose(found.values[:, 1], half, rtol=1e-5)


def test_layers_move_one_at_a_time(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    start, end = task.ensemble(), task.elsewhere()
    found = by_layer(task, start, end, 3)
    assert list(found) == ["layer 1", "layer 2", "layer 3"]
    initial = start.state_dict()
    for number, name in enumerate(("0", "2", "4"), 1):
        mixed = task.elsewhere()
        mixed.load_state_dict({n: initial[n] if n.startswith(f"{name}.") else x for n, x in end.state_dict().items()})
        at_start = mixed.losses(task.loss, task.x_test, task.y_test, shared=False).detach()
        np.testing.assert_allclose(found[f"layer {number}"].values[:, 0], at_start, rtol=1e-5)


def test_a_run_that_diverged_has_no_line(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    end = task.elsewhere()
    with torch.no_grad():
        next(end.parameters())[1] = torch.nan
    found = line(task, task.ensemble(), end, 5)
    assert np.isfinite(found.values[0]).all()
    assert np.isnan(found.values[1]).all()
    np.testing.assert_array_equal(np.isnan(found.heights()), [False, True])
    np.testing.assert_array_equal(np.isnan(found.barriers()), [False, True])


def test_heights_of_known_curves() -> None:
    alphas = np.linspace(0, 1, 5)
    found = Line(alphas, np.array([[1.0, 0.8, 0.5, 0.2, 0.0], [1.0, 0.5, 1.5, 0.7, 0.0]]))
    np.testing.assert_allclose(found.heights(), [0, 1])
    np.testing.assert_allclose(found.barriers(), [0, 1])


def test_other_starts_are_other_and_repeatable(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    first, again, other = (next(e.parameters()) for e in (task.ensemble(), task.ensemble(), task.elsewhere()))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_second_stream_sees_other_batches(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    ends = [task.fit(f"{k}", adam(0.01), 3, stream=k).ensemble.state_dict()["0.weight"] for k in (0, 0, 1)]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


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


def test_the_step_falls_tenfold_after_each_third() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], STEP)
    after = dropped_twice(optimizer, 99)
    seen = []
    for epoch in (1, 32, 33, 65, 66, 99):
        after(epoch)
        seen.append(optimizer.param_groups[0]["lr"])
    np.testing.assert_allclose(seen, [0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
