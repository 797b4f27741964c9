"""Pictures of planar classifiers: predicted probability as colour, the boundary as a line, test points as dots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...run import Fit, Run
from .problem import Problem

GRID = 250
COLOURS = ("#c44e52", "#4c72b0")


def pictures(run: Run, task: Problem, fits: Mapping[str, Fit], caption: str, columns: int = 3) -> None:
    """The first run's classifier of every arm, under its test accuracy.

    ``fits`` are the arms of one grid in order, as :meth:`Fit.split` gives them.
    """
    x, y = task.x_test[0].cpu(), task.y_test[0].cpu()
    rows = -(-len(fits) // columns)
    low, high = x.min(0).values - 0.1, x.max(0).values + 0.1
    width, height = (high - low).tolist()
    size = (3.4 * columns, rows * (3.4 * min(1.0, max(0.7, height / width)) + 0.4))
    with run.figure("classifiers", caption, nrows=rows, ncols=columns, figsize=size) as axes:
        for panel in axes.flat[len(fits) :]:
            panel.axis("off")
        for number, (panel, (name, fit)) in enumerate(zip(axes.flat, fits.items(), strict=False)):
            _draw(panel, _field(fit, number * len(task.x), low, high), x, y, low, high)
            panel.set_title(f"{name}\ntest accuracy {100 * fit.final('test_accuracy')[0]:.1f} %", fontsize=10)


@torch.no_grad()
def _field(fit: Fit, member: int, low: Tensor, high: Tensor) -> Tensor:
    """(GRID, GRID) probabilities of class 1, rows along the second coordinate."""
    horizontal, vertical = (torch.linspace(float(a), float(b), GRID) for a, b in zip(low, high, strict=True))
    second, first = torch.meshgrid(vertical, horizontal, indexing="ij")
    points = torch.stack([first.flatten(), second.flatten()], 1).to(fit.ensemble.seeds.device)
    output = fit.ensemble.alone(member)(points)
    return torch.sigmoid(output).nan_to_num(0.5).reshape(GRID, GRID).cpu()  # a diverged run knows nothing


def _draw(panel: Any, field: Tensor, x: Tensor, y: Tensor, low: Tensor, high: Tensor) -> None:
    axes = [np.linspace(float(a), float(b), GRID) for a, b in zip(low, high, strict=True)]
    panel.contourf(*axes, field, levels=np.linspace(0, 1, 21), cmap="RdBu", alpha=0.75)
    if field.min() < 0.5 < field.max():
        panel.contour(*axes, field, levels=[0.5], colors="black", linewidths=0.8)
    for label, colour in enumerate(COLOURS):
        panel.scatter(*x[y == label].T, s=3, c=colour, linewidths=0)
    panel.set(xticks=[], yticks=[])
