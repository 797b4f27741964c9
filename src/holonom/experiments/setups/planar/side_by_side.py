"""Decision boundaries of several methods beside each other, and the accuracies of all runs: one row for each task."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ....ensemble import Ensemble
from ...run import Array, Run
from .decision_boundaries import draw, probabilities_of

OURS, THEIRS = "#1b7837", "#555555"
GRID, POINTS = 260, 400  # cells a side; points drawn


class Arm(NamedTuple):
    """A method: its trained runs, their test accuracies, and whether it is one of the papers'."""

    title: str
    ensemble: Ensemble
    accuracy: Array
    ours: bool


class Row(NamedTuple):
    """A task with every run's test points, (R, N, …)."""

    title: str
    x: Tensor
    y: Tensor
    arms: list[Arm]


def side_by_side(run: Run, name: str, caption: str, rows: list[Row]) -> None:
    columns = max(len(row.arms) for row in rows)
    options = {"figsize": (2.7 * columns + 3.3, 3.2 * len(rows) + 0.4), "width_ratios": [*[1.0] * columns, 1.15]}
    with run.figure(name, caption, nrows=len(rows), ncols=columns + 1, colours=128, **options) as axes:
        for panels, row in zip(axes, rows, strict=True):
            bound = 1.08 * float(row.x.abs().max())
            for panel, arm in zip(panels, row.arms, strict=False):
                _map(panel, arm, row, bound)
            panels[0].set_ylabel(row.title, fontsize=12)
            _dots(panels[-1], row.arms)
        axes[0, -1].set_title("test accuracy of every run", fontsize=12)
        axes[0, 0].figure.suptitle(
            "Same network, same data, same number of steps: only the optimizer differs", fontsize=14
        )


def _map(panel: Any, arm: Arm, row: Row, bound: float) -> None:
    """The classifier of the run with the median accuracy, over its test points."""
    local = arm.accuracy[: arm.ensemble.replicas]  # of this process, which come first on the one that draws
    middle = int(np.argsort(local)[len(local) // 2])
    model = arm.ensemble.alone(middle)
    logits = getattr(model, "body", model)
    corners = (-bound, -bound), (bound, bound)
    field = probabilities_of(logits, *corners, GRID)
    draw(panel, field, row.x[middle][:POINTS], row.y[middle][:POINTS], *corners, size=8.0, strength=0.55)
    panel.set_aspect("equal")
    panel.set_title(f"{arm.title}\n{100 * local[middle]:.0f} % correct", **_style(arm))


def _dots(panel: Any, arms: list[Arm]) -> None:
    for place, arm in enumerate(arms):
        colour = OURS if arm.ours else THEIRS
        percent = 100 * arm.accuracy
        offsets = 0.12 * np.sin(2.4 * np.arange(len(percent)))  # so that equal ones are seen
        panel.scatter(percent, place + offsets, s=30, color=colour, edgecolors="white", linewidths=0.6)
        panel.plot([percent.mean()] * 2, [place - 0.27, place + 0.27], color=colour, linewidth=2.5)
        panel.text(50.5, place - 0.34, f"{arm.title.partition(':')[0]}: {percent.mean():.0f} %", **_style(arm, 10))
    panel.axvline(50, color="#999999", linestyle=":", linewidth=1)
    panel.set(xlim=(48, 101), ylim=(len(arms) - 0.5, -0.6), yticks=[], xlabel="% correct (50: a coin)")
    for side in ("left", "right", "top"):
        panel.spines[side].set_visible(False)


def _style(arm: Arm, size: int = 12) -> dict[str, Any]:
    return {"fontsize": size, "color": OURS if arm.ours else "black", "fontweight": "bold" if arm.ours else "normal"}
