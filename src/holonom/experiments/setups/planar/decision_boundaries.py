"""Decision boundaries of an ensemble of planar classifiers: curvature and pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....ensemble import Ensemble
from ... import ranks
from ...run import Array, Run

BOUND = 1.5


@torch.no_grad()
def mean_curvatures(run: Run, ensemble: Ensemble, grid: int, bound: float = BOUND, method: str = "level") -> Array:
    """(runs,) mean curvature of the boundary p = ½ on [−bound, bound]²; NaN where there is none.

    ``method`` is that of :func:`holonom.metrics.boundary_curvature`: "level", or "points" as the thesis has it.
    """
    from ....metrics import boundary_curvatures

    ensemble.eval()

    def predict(points: Tensor) -> Tensor:
        return torch.sigmoid(ensemble(points).squeeze(-1)).nan_to_num(0.0)  # a diverged run has no boundary

    curves = boundary_curvatures(predict, (-bound, bound), grid, method=method, device=run.device)
    means = np.array([curve.mean() if len(curve) else np.nan for curve in curves])
    gathered: Array = ranks.gather(means[None], ensemble.repeats)[0]
    return gathered


@torch.no_grad()
def probabilities(ensemble: Ensemble, replica: int, grid: int = 250, bound: float = BOUND) -> Tensor:
    """(grid, grid) probabilities of class 1, rows along y."""
    axis = torch.linspace(-bound, bound, grid)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    model = ensemble.alone(replica).eval()
    points = torch.stack([x.flatten(), y.flatten()], 1).to(ensemble.seeds.device)
    return torch.sigmoid(model(points)).reshape(grid, grid).cpu()


def draw(panel: Any, field: Tensor, x: Tensor, y: Tensor, bound: float = BOUND, size: float = 10.0) -> None:
    """Probabilities as colour, the boundary as a line, the data as dots."""
    axis = np.linspace(-bound, bound, len(field))
    panel.contourf(axis, axis, field, levels=np.linspace(0, 1, 21), cmap="RdBu", alpha=0.75)
    panel.contour(axis, axis, field, levels=[0.5], colors="black", linewidths=1.0)
    for label, colour in enumerate(("#c44e52", "#4c72b0")):
        panel.scatter(*x[y == label].cpu().T, s=size, c=colour, edgecolors="white", linewidths=0.3)
    panel.set(xlim=(-bound, bound), ylim=(-bound, bound), xticks=[], yticks=[], aspect="equal")
