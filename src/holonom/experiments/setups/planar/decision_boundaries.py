"""Decision boundaries of planar classifiers: curvature and figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ....ensemble import Ensemble
from ... import ranks
from ...run import Array, Fit, Run
from .problem import Problem

BOUND = 1.5
COLOURS = ("#c44e52", "#4c72b0")  # of the two classes
Corner = tuple[float, float]


class Curvatures(NamedTuple):
    """Of the boundaries: (runs,) means over a run's points, mean squares, maxima and numbers of points."""

    mean: Array
    square: Array
    largest: Array
    points: Array

    def std(self) -> float:
        """Over the points of all runs together."""
        weight = self.points / self.points.sum()
        mean, square = ((weight * np.nan_to_num(x)).sum() for x in (self.mean, self.square))
        return float(np.sqrt(max(0.0, square - mean**2)))

    def split(self, parts: int) -> list[Curvatures]:
        """Of a grid trained as one ensemble, value by value."""
        return [Curvatures(*columns) for columns in zip(*(np.split(x, parts) for x in self), strict=True)]


COLUMNS = (
    "(4.60): mean", "std", "max", "median run", "level curve: mean", "median run "
)  # fmt: skip
CURVATURE_NOTE = (
    "By the thesis's formula (4.60) on consecutive contour points, as published, a few near-equal points dominate a "
    "run's mean, and a few runs the mean over runs, so the claims by it are about medians over runs. The curvature of "
    "the level curve converges as the grid is refined; the claims about it are about means."
)


def cells(points: Curvatures, level: Curvatures) -> list[str]:
    """Below :data:`COLUMNS`; std and max are those of all points of all runs."""
    numbers = (
        np.nanmean(points.mean), points.std(), np.nanmax(points.largest), np.nanmedian(points.mean),
        np.nanmean(level.mean), np.nanmedian(level.mean),
    )  # fmt: skip
    return [f"{number:.4g}" for number in numbers]


@torch.no_grad()
def curvatures(run: Run, ensemble: Ensemble, grid: int, bound: float = BOUND, method: str = "level") -> Curvatures:
    """Curvature of the boundary p = ½ on [−bound, bound]²; NaN where there is none.

    ``method`` is that of :func:`holonom.metrics.boundary_curvature`: "level", or "points" as in the thesis.
    """
    from ....metrics import boundary_curvatures

    ensemble.eval()

    def predict(points: Tensor) -> Tensor:
        return torch.sigmoid(ensemble(points).squeeze(-1)).nan_to_num(0.0)  # a diverged run has no boundary

    curves = boundary_curvatures(predict, (-bound, bound), grid, method=method, device=run.device)
    rows = [
        (curve.mean(), np.square(curve).mean(), curve.max(), len(curve)) if len(curve) else (np.nan, np.nan, np.nan, 0)
        for curve in curves
    ]
    return Curvatures(*ranks.gather(np.array(rows, dtype=float).T, ensemble.repeats))


def probabilities(ensemble: Ensemble, replica: int, low: Corner, high: Corner, grid: int = 250) -> Tensor:
    """(grid, grid) probabilities of class 1 in a rectangle, rows along y; ½ everywhere for a diverged run."""
    return probabilities_of(ensemble.alone(replica), low, high, grid)


@torch.no_grad()
def probabilities_of(model: nn.Module, low: Corner, high: Corner, grid: int = 250) -> Tensor:
    """The same of one model that returns logits."""
    horizontal, vertical = (torch.linspace(a, b, grid) for a, b in zip(low, high, strict=True))
    y, x = torch.meshgrid(vertical, horizontal, indexing="ij")
    points = torch.stack([x.flatten(), y.flatten()], 1).to(next(model.parameters()).device)
    return torch.sigmoid(model.eval()(points)).nan_to_num(0.5).reshape(grid, grid).cpu()


def draw(
    panel: Any,
    field: Tensor,
    x: Tensor,
    y: Tensor,
    low: Corner,
    high: Corner,
    size: float = 3.0,
    strength: float = 0.75,
) -> None:
    """Probabilities as colour of a given strength, the boundary as a line, the data as dots."""
    axes = [np.linspace(a, b, len(field)) for a, b in zip(low, high, strict=True)]
    extent = (low[0], high[0], low[1], high[1])
    colours = {"cmap": "RdBu", "vmin": 0, "vmax": 1, "alpha": strength}
    panel.imshow(field.numpy(), **colours, extent=extent, origin="lower", aspect="auto")
    if field.min() < 0.5 < field.max():
        panel.contour(*axes, field, levels=[0.5], colors="black", linewidths=0.9)
    for label, colour in enumerate(COLOURS):
        edge = {"edgecolors": "white", "linewidths": 0.3} if size > 3 else {"linewidths": 0}
        panel.scatter(*x[y == label].cpu().T, s=size, c=colour, **edge)
    panel.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[])


def draw_arms(run: Run, task: Problem, fits: Mapping[str, Fit], caption: str, columns: int = 3) -> None:
    """The first run's classifier of every arm with its test points, under its test accuracy.

    ``fits`` are the arms of one grid in order, as :meth:`Fit.split` gives them.
    """
    x, y = task.x_test[0].cpu(), task.y_test[0].cpu()
    rows = -(-len(fits) // columns)
    low, high = (tuple(edge.tolist()) for edge in (x.min(0).values - 0.1, x.max(0).values + 0.1))
    width, height = (b - a for a, b in zip(low, high, strict=True))
    size = (3.4 * columns, rows * (3.4 * min(1.0, max(0.7, height / width)) + 0.4))
    with run.figure("classifiers", caption, nrows=rows, ncols=columns, figsize=size) as axes:
        for panel in axes.flat[len(fits) :]:
            panel.axis("off")
        for number, (panel, (name, fit)) in enumerate(zip(axes.flat, fits.items(), strict=False)):
            draw(panel, probabilities(fit.ensemble, number * len(task.x), low, high), x, y, low, high)
            panel.set_title(f"{name}\ntest accuracy {100 * fit.final('test_accuracy')[0]:.1f} %", fontsize=10)
