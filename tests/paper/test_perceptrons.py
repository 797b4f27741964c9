"""Perceptrons on several data sets: lines between their states, Fashion-MNIST, tables of categories."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from holonom import Ensemble
from holonom.batches import Shuffled
from holonom.experiments.setups.perceptrons import fashion_mnist
from holonom.experiments.setups.perceptrons.search import draw, draw_momenta
from holonom.experiments.setups.perceptrons.tables import split
from holonom.experiments.setups.perceptrons.tasks import Task, by_layer, line, on_spirals
from holonom.experiments.setups.planar.methods import adam
from holonom.experiments.setups.planar.problem import TWO_TURNS
from holonom.experiments.setups.shared import shrinking_circles
from holonom.experiments.setups.shared.optimizers import Momentum
from holonom.experiments.studies import fig7

from .small import small_run


def make_task(folder: Path) -> Task:
    return on_spirals(small_run(folder), "spiral", TWO_TURNS, (6, 5), points=40, percent=25)


def test_a_line_is_the_loss_of_mixed_weights_of_every_run(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    start, end = task.ensemble(), task.independent()
    found = line(task, start, end, 3)
    with torch.no_grad():
        for p, q in zip(start.parameters(), end.parameters(), strict=True):
            p.copy_((p + q) / 2)
        half = start.losses(task.loss, task.x_test, task.y_test, shared=False)
    np.testing.assert_allclose(found.values[:, 1], half, rtol=1e-5)


def test_layers_move_one_at_a_time(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    start, end = task.ensemble(), task.independent()
    found = by_layer(task, start, end, 3)
    assert list(found) == ["layer 1", "layer 2", "layer 3"]
    initial = start.state_dict()
    for number, name in enumerate(("0", "2", "4"), 1):
        mixed = task.independent()
        mixed.load_state_dict({n: initial[n] if n.startswith(f"{name}.") else x for n, x in end.state_dict().items()})
        at_start = mixed.losses(task.loss, task.x_test, task.y_test, shared=False).detach()
        np.testing.assert_allclose(found[f"layer {number}"].values[:, 0], at_start, rtol=1e-5)


def test_a_run_that_diverged_has_no_line(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    end = task.independent()
    with torch.no_grad():
        next(end.parameters())[1] = torch.nan
    found = line(task, task.ensemble(), end, 5)
    assert np.isfinite(found.values[0]).all()
    assert np.isnan(found.values[1]).all()
    np.testing.assert_array_equal(np.isnan(found.heights()), [False, True])
    np.testing.assert_array_equal(np.isnan(found.barriers()), [False, True])


def test_other_starts_are_other_and_repeatable(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    first, again, other = (next(e.parameters()) for e in (task.ensemble(), task.ensemble(), task.independent()))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_second_stream_sees_other_batches(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    ends = [task.fit(f"{k}", adam(0.01), 3, stream=k).ensemble.state_dict()["0.weight"] for k in (0, 0, 1)]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def images(count: int = 60) -> fashion_mnist.Images:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2 * count, 784, generator=generator)
    y = torch.randint(10, (2 * count,), generator=generator)
    return fashion_mnist.Images(x[:count], y[:count], x[count:], y[count:])


def test_a_grid_of_momenta_is_sgd_cell_by_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "BATCH", 20)
    data, cells = images(), [Momentum(0.1, 0.8), Momentum(0.05, 0.95, 0.1)]
    fit = fashion_mnist.momentum(small_run(tmp_path), "grid", cells, data, 5, epochs=2)
    trained = fit.ensemble.unstack()
    for number, cell in enumerate(cells):
        alone = Ensemble(lambda: fashion_mnist.shlp(784, 5, 10), 2, seed=0)
        optimizer = torch.optim.SGD(alone.parameters(), cell.lr, momentum=cell.momentum, weight_decay=cell.weight_decay)
        batches = Shuffled(data.x, data.y, 20, alone.seeds)
        for epoch in range(2):
            for index in batches.order(epoch):
                optimizer.zero_grad()
                alone.losses(cross_entropy, *batches.take(index), shared=False).sum().backward()
                optimizer.step()
        for one, other in zip(alone.unstack(), trained[2 * number : 2 * number + 2], strict=True):
            for p, q in zip(one.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(p, q, atol=1e-5, rtol=1e-4)


def test_cross_validation_never_trains_on_what_it_tests() -> None:
    data = images()
    folds = data.folds(3, 0, 3)
    for x, x_test in zip(folds.x, folds.x_test, strict=True):
        assert not (x[:, None] == x_test[None]).all(-1).any()
    seen = folds.x_test.flatten(0, 1)
    assert sorted(seen[:, 0].tolist()) == sorted(data.x[:, 0].tolist())
    assert not (data.x_test[:, None] == seen[None]).all(-1).any()


def test_annealing_lowers_the_step_of_annealed_cells_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def keep(run, arm, ensemble, optimizer, data, epochs, after_epoch):
        after_epoch(epochs)
        seen["lr"] = optimizer.param_groups[0]["lr"].tolist()
        seen["words"] = {group["scheme"] for group in optimizer.param_groups}

    monkeypatch.setattr(fashion_mnist, "_train", keep)
    cells = [fig7.PUBLISHED, fig7.PUBLISHED._replace(annealed=True)]
    fashion_mnist.constrained(small_run(tmp_path, 1), "x", cells, images(), 5, epochs=4)
    assert seen["lr"] == pytest.approx([0.3, 0.003])
    assert seen["words"] == {"ABO"}  # the paper's


def test_annealing_sgd_is_a_schedule_of_torchs_sgd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "BATCH", 20)
    data, cells = images(), [Momentum(0.1, 0.8), Momentum(0.1, 0.8, 0.01, annealed=True)]
    trained = fashion_mnist.momentum(small_run(tmp_path, 1), "grid", cells, data, 5, epochs=4).ensemble.unstack()
    alone = Ensemble(lambda: fashion_mnist.shlp(784, 5, 10), 1, seed=0)
    optimizer = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.8, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4, eta_min=0.001)
    batches = Shuffled(data.x, data.y, 20, alone.seeds)
    for epoch in range(4):
        for index in batches.order(epoch):
            optimizer.zero_grad()
            alone.losses(cross_entropy, *batches.take(index), shared=False).sum().backward()
            optimizer.step()
        schedule.step()
    for p, q, other in zip(*(model.parameters() for model in (alone.alone(0), trained[1], trained[0])), strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=1e-4)
        assert not torch.allclose(p, other, atol=1e-4)


def test_candidates_are_different_and_repeatable() -> None:
    drawn = draw(3, "circle", 20, [fig7.PUBLISHED])
    assert len({fig7.PUBLISHED, *drawn}) == 21
    assert drawn == draw(3, "circle", 20, [fig7.PUBLISHED])
    assert drawn != draw(4, "circle", 20, [fig7.PUBLISHED])
    in_the_table = [Momentum(*key) for key in fig7.TABLE]
    momenta = draw_momenta(3, 30, in_the_table)
    assert len(set(momenta)) == 30
    assert not set(momenta) & set(in_the_table)
    assert 5 < sum(cell.annealed for cell in momenta) < 25


def test_the_published_codes_circles_shrink() -> None:
    """One weight, by hand: the new θ in the place of the old one takes θ² + ξ² off the circle at every drift."""
    h, r, gradient = 0.3, 0.5, 0.7
    q, xi = 0.3, math.sqrt(r**2 - 0.3**2)
    p, p_xi = gradient, gradient
    p -= q * (q * p + xi * p_xi) / r**2
    p_xi -= xi * (q * p + xi * p_xi) / r**2
    p, p_xi = p - h / 2 * gradient * (1 - q**2 / r**2), p_xi + h / 2 * gradient * q * xi / r**2
    for half in range(2):
        speed = (xi * p - q * p_xi) / r**2
        c, s = math.cos(speed * h / 2), math.sin(speed * h / 2)
        p, p_xi = speed * (xi * c - q * s), -speed * (q * c + xi * s)
        q = q * c + xi * s
        xi = xi * c - q * s
        if not half:
            p, p_xi = math.exp(-h) * p, math.exp(-h) * p_xi
            normal = (q * p + xi * p_xi) / r**2
            p, p_xi = p - normal * q, p_xi - normal * xi
    weight = torch.nn.Parameter(torch.full((1, 1), 0.3, dtype=torch.float64))
    weight.grad = torch.full((1, 1), gradient, dtype=torch.float64)
    optimizer = shrinking_circles.ShrinkingCircles([{"params": [weight], "radius": r}], h, 1.0)
    torch.testing.assert_close(optimizer.smallest_circles()[0], torch.ones(1))
    optimizer.step()
    assert float(weight.detach()) == pytest.approx(q, abs=1e-12)
    assert float(optimizer.smallest_circles()[0]) == pytest.approx((q**2 + xi**2) / r**2, abs=1e-12)
    assert float(optimizer.smallest_circles()[0]) < 0.999


def test_weights_beside_the_published_codes_circles_move_as_aoab() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = shrinking_circles.ShrinkingCircles([{"params": [("free", weight)]}], 0.2, 0.5)
    q, p, left = 0.0, 0.0, math.exp(-0.1)
    for number, gradient in enumerate((1.0, -2.0, 0.5)):
        p = (1 - 0.1) * gradient if number == 0 else p
        q, p = q + 0.1 * p * (1 + left), left * p - 0.2 * gradient
        weight.grad = torch.full((1,), gradient)
        optimizer.step()
    assert float(weight.detach()) == pytest.approx(q, abs=1e-6)


def test_every_run_holds_out_rows_of_its_own(tmp_path: Path) -> None:
    rows = torch.arange(100.0)[:, None]
    table: Any = SimpleNamespace(numbers=lambda: rows, labels=torch.arange(100))
    x, y, x_test, y_test = split(small_run(tmp_path), table, None)
    assert (x.shape, x_test.shape) == ((2, 80, 1), (2, 20, 1))
    assert torch.equal(x.squeeze(-1).long(), y)
    for train, test in zip(y, y_test, strict=True):
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(100))
    assert not torch.equal(y_test[0], y_test[1])
