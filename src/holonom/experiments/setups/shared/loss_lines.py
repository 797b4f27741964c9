"""The test loss on straight lines between states of networks: barriers, figures, tables and claims."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .... import landscape
from ...claims import Claim, most
from ...run import Array, Run

_COLOURS = 10  # distinguishable ones


@dataclass(frozen=True)
class Line:
    """Test loss of all runs along a line: ``values`` is (runs, points), NaN for runs that diverged."""

    alphas: Array
    values: Array

    def heights(self) -> Array:
        """(runs,) height of the barrier; 0 for a descending path."""
        return np.array([np.nan if shape is None else shape.height for shape in self._profiles()])

    def places(self) -> Array:
        """(runs,) α of the barrier's top."""
        return np.array([np.nan if shape is None else shape.place for shape in self._profiles()])

    def barriers(self) -> Array:
        """(runs,) 1 where there is a barrier, beyond the tolerance of :func:`holonom.landscape.classify`."""
        return self.are("barrier")

    def are(self, *words: str) -> Array:
        """(runs,) 1 where the profile is one of these: "barrier", "no barrier", "plateau"."""
        return np.array([np.nan if profile is None else float(profile in words) for profile in self._profiles()])

    def _profiles(self) -> list[landscape.BarrierProfile | None]:
        alphas, rows = torch.from_numpy(self.alphas), torch.from_numpy(self.values)
        return [landscape.classify(alphas, row) if bool(row.isfinite().all()) else None for row in rows]

    def draw(self, panel: Any, label: str, **style: Any) -> None:
        """The mean over runs, and every run as a thin line."""
        (line,) = panel.plot(self.alphas, np.nanmean(self.values, 0), label=label, linewidth=2, **style)
        panel.plot(self.alphas, self.values.T, color=line.get_color(), linewidth=0.6, alpha=0.3)


def _colours(count: int) -> Sequence[Any]:
    """The default cycle; for more lines black for the first (the whole network) and a colour map for its layers."""
    from matplotlib import colormaps

    if count <= _COLOURS:
        return [f"C{number}" for number in range(count)]
    return ["black", *colormaps["viridis"](np.linspace(0, 0.95, count - 1))]


def draw(run: Run, name: str, panels: Mapping[str, Mapping[str, Line]], caption: str, **axis: Any) -> None:
    """One panel per title, one colour per line: mean over runs thick, single runs thin; the values also as CSV."""
    values = (
        (title, label, number, alpha, value)
        for title, lines in panels.items()
        for label, one in lines.items()
        for number, row in enumerate(one.values)
        for alpha, value in zip(one.alphas, row, strict=True)
    )
    run.save_rows(f"{name}.csv", ["panel", "line", "run", "α", "test loss"], values)
    size = (4.6 * len(panels), 3.8)
    with run.figure(name, caption, ncols=len(panels), figsize=size) as axes, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all runs of an arm diverged: nothing to draw
        for panel, (title, lines) in zip(axes[0], panels.items(), strict=True):
            for (label, one), colour in zip(lines.items(), _colours(len(lines)), strict=True):
                one.draw(panel, label, color=colour)
            panel.set(title=title, xlabel="α", ylabel="test loss", **axis)
            place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if len(lines) > _COLOURS else {}
            panel.legend(frameon=False, fontsize=8, **place)


def table(run: Run, lines: Mapping[str, Line], title: str = "Barriers of the test loss along the line") -> None:
    rows = []
    for name, one in lines.items():
        height = one.heights()
        rows.append([
            name, f"{np.nanmean(one.values[:, 0]):.3g}", f"{np.nanmean(one.values[:, -1]):.3g}",
            f"{np.nanmean(height):.3g}", f"{np.nanmax(height):.3g}", f"{100 * np.nanmean(one.barriers()):.0f}",
        ])  # fmt: skip
    run.table(title, ["path", "at α = 0", "at α = 1", "mean height", "highest", "runs with a barrier %"], rows)


def mostly_barrier(name: str, published: str, one: Line) -> Claim:
    """More than half of the runs cross a barrier."""
    return most(name, published, one.barriers())


def mostly_none(name: str, published: str, one: Line) -> Claim:
    """Fewer than half of the runs cross a barrier; the numbers are shares of runs without one."""
    return most(name, published, 1 - one.barriers())


def mostly(name: str, published: str, one: Line, *words: str) -> Claim:
    """More than half of the runs have one of these shapes."""
    return most(name, published, one.are(*words))
