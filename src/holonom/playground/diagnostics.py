"""What is looked at from time to time: curvature, temperatures, weights, and the loss along a line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import landscape
from ..ensemble import Ensemble
from ..optimizer import Langevin
from . import recipe
from .run import Run

Put = Callable[[Any], int]
"""Puts an array into a message; returns its number there."""

ALONG = torch.linspace(0.0, 1.25, 26, dtype=torch.float64)
"""Places on the line from the start (0) to the present weights (1), and beyond."""

_MOST_POINTS = 400  # drawn of one weight
_LARGEST = 128  # the smaller side of a matrix whose singular values are shown


def curvature(run: Run, number: int, put: Put) -> Any:
    value = recipe.curvature(run.arms[number].model, run.settings.bound)
    run.bends[number].add(run.step, [value])
    return {"now": finite(value), "series": put(run.bends[number].table())}


def temperatures(run: Run, number: int, put: Put) -> Any:
    arm = run.arms[number]
    rows = [[finite(value) for value in row] for row in arm.temperatures()]
    readings = arm.thermometer.readings if arm.thermometer else 0
    return {"layers": rows, "since": arm.since, "readings": readings, "measured": arm.thermometer is not None}


def line(run: Run, number: int, put: Put) -> Any:
    """The training loss on the straight line from the start; of replicas the mean."""
    arm = run.arms[number]
    over = landscape.over((run.x, run.y), {"loss": recipe.loss})
    try:
        path = landscape.interpolate(
            arm.model, run.starts[number], arm.model, over, ALONG, fast=False, nonfinite="keep"
        )
        values = path.values.reshape(-1, len(ALONG)).mean(0)
    except ValueError:  # the weights are not finite
        values = torch.full_like(ALONG, math.nan)
    return {"along": put(ALONG), "loss": put(values)}


def weights(run: Run, number: int, put: Put) -> Any:
    """Every weight as its space shows it; of replicas the first."""
    arm, found = run.arms[number], []
    values = run.settings.arms[number].values
    names = [name for name, p in arm.model.named_parameters() if name.endswith("weight")]
    spaces = _spaces(arm)
    for place, name in enumerate(names):
        weight = arm.model.get_parameter(name)
        state = arm.optimizer.state[weight]
        space = spaces.get(name, "Free")
        w = _first(arm, weight.detach())
        radius = values["output_radius" if place == len(names) - 1 else "radius"] if "radius" in values else None
        shown: dict[str, Any] = {"layer": place + 1, "shape": list(w.shape), "space": space}
        if space == "Circle":
            angle = 2 * math.pi * _thin(_first(arm, state["turns"]).flatten())
            shown |= {"radius": radius, "points": put(torch.stack([angle.sin(), angle.cos()], 1))}
        elif space == "Sphere":
            shown |= {"radius": radius, "points": put(_seen_from_above(_thin(w)) / float(radius or 1.0))}
        elif min(w.shape) <= _LARGEST and bool(w.isfinite().all()):
            shown["values"] = put(torch.linalg.svdvals(w))
        found.append(shown)
    return found


def _spaces(arm: recipe.Arm) -> dict[str, str]:
    """The name of the space of every constrained parameter."""
    if not isinstance(arm.optimizer, Langevin):
        return {}
    return {
        name: str(group["constraint"]).partition("(")[0]
        for group in arm.optimizer.param_groups
        for name in group["param_names"]
    }


def _first(arm: recipe.Arm, tensor: Tensor) -> Tensor:
    return tensor[0] if isinstance(arm.model, Ensemble) else tensor


def _thin(tensor: Tensor) -> Tensor:
    return tensor[:: -(-len(tensor) // _MOST_POINTS)]


def _seen_from_above(rows: Tensor) -> Tensor:
    """Rows as points of a disc: as far from the centre as they are long, in the direction of their first two entries.

    A row of two entries is its projection along the slack variable; of longer ones the length is kept.
    """
    if rows.shape[1] < 2:
        rows = torch.cat([rows, torch.zeros_like(rows)], 1)
    plane = rows[:, :2]
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    seen: Tensor = plane * (length / torch.linalg.vector_norm(plane, dim=1, keepdim=True).clamp_min(1e-12))
    return seen


def finite(value: float) -> float | None:
    """JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


KINDS: dict[str, Callable[[Run, int, Put], Any]] = {
    "temperatures": temperatures, "weights": weights, "curvature": curvature, "line": line
}  # fmt: skip


def as_array(values: Any) -> np.ndarray[Any, Any]:
    """Tensors and tables as the float32 a page reads."""
    array = values.detach().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return np.ascontiguousarray(array, dtype=np.float32) if array.dtype.kind == "f" else array
