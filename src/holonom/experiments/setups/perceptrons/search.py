"""Settings for Fashion-MNIST, drawn at random and compared by cross-validation inside the training images."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from ... import ranks
from ...run import Fit, Run
from ..shared.optimizers import Momentum
from .fashion_mnist import Constrained, Images, constrained, momentum

Cell = TypeVar("Cell")
Scores = dict[Cell, tuple[float, float]]  # accuracy and loss


class Best(NamedTuple):
    """The settings with the highest accuracy, and those with the lowest loss."""

    constrained: tuple[Constrained, Constrained]
    published: tuple[Momentum, Momentum]
    momentum: tuple[Momentum, Momentum]


def search(
    run: Run, circles: list[Constrained], spheres: list[Constrained], published: Sequence[Momentum],
    drawn: Sequence[Momentum], images: Images, hidden: int, epochs: int,
) -> Best:  # fmt: skip
    """Every run holds out one part: circles and spheres; SGD-m's published settings; these and others."""
    first, count = ranks.share(run.replicas)
    folds = images.folds(count, first, max(2, run.replicas))
    scores: Scores[Constrained] = {}
    for cells in (circles, spheres):
        if cells:
            fit = constrained(run, f"search, {cells[0].space}", cells, folds, hidden, epochs)
            scores.update(_scores(fit.split([str(cell) for cell in cells]), cells))
    of_grid, others = (
        _scores(momentum(run, arm, cells, folds, hidden, epochs).split([str(cell) for cell in cells]), cells)
        for arm, cells in (("search, SGD-m", published), ("search, SGD-m, drawn", drawn))
    )
    everything = {str(cell): score for cell, score in (*scores.items(), *of_grid.items(), *others.items())}
    ordered = sorted(everything.items(), key=lambda item: -np.nan_to_num(item[1][0]))
    rows = [[name, f"{100 * accuracy:.2f}", f"{loss:.4f}"] for name, (accuracy, loss) in ordered]
    run.table("Cross-validation inside the training images (↓: annealed)", ["settings", "accuracy %", "loss"], rows)
    return Best(best(scores), best(of_grid), best({**of_grid, **others}))


def _scores(parts: Mapping[str, Fit], cells: Sequence[Cell]) -> Scores[Cell]:
    return {
        cell: (float(part.final("test_accuracy").mean()), float(part.final("test_loss").mean()))
        for cell, part in zip(cells, parts.values(), strict=True)
    }


def best(scores: Scores[Cell]) -> tuple[Cell, Cell]:
    """By accuracy, and by loss; what diverged is last."""
    return (
        max(scores, key=lambda cell: np.nan_to_num(scores[cell][0])),
        min(scores, key=lambda cell: np.nan_to_num(scores[cell][1], nan=np.inf)),
    )


def draw(seed: int, space: str, count: int, known: Sequence[Constrained]) -> list[Constrained]:
    """Random settings around the published ones; a sphere bounds a row's norm where a circle bounds its entries."""
    rng = random.Random(f"{space} {seed}")
    inner, outer = {
        "circle": ((0.03, 0.04, 0.05, 0.07), (0.06, 0.08, 0.1, 0.15)),
        "sphere": ((0.7, 1.0, 1.4), (0.7, 1.0, 1.5)),
    }[space]
    chosen: list[Constrained] = []
    while len(chosen) < count:
        cell = Constrained(
            space, (rng.choice(inner), rng.choice(outer)), rng.choice((0.2, 0.3, 0.4)), rng.choice((0.5, 1.0, 2.0)),
            rng.choice((0.0, 0.0, 1e-7, 1e-6)), rng.random() < 0.5,
        )  # fmt: skip
        if cell not in (*known, *chosen):
            chosen.append(cell)
    return chosen


def draw_momenta(seed: int, count: int, known: Sequence[Momentum]) -> list[Momentum]:
    """Random settings of SGD around the published ones, half of them annealed, as those of circles are."""
    rng = random.Random(f"momentum {seed}")
    chosen: list[Momentum] = []
    while len(chosen) < count:
        cell = Momentum(
            rng.choice((0.02, 0.05, 0.1, 0.2, 0.4)), rng.choice((0.0, 0.5, 0.7, 0.8, 0.9, 0.95)),
            rng.choice((0.0, 1e-5, 5e-5, 1e-4, 2e-4, 5e-4)), rng.random() < 0.5,
        )  # fmt: skip
        if cell not in (*known, *chosen):
            chosen.append(cell)
    return chosen
