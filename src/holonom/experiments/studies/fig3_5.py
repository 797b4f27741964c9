"""Thesis Fig. 3.5: the surface through one start and two minima, MNIST against the two-turn spiral."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from ... import landscape, presets
from ...ensemble import Ensemble
from .. import ranks
from ..base import experiment
from ..claims import Claim, greater, most
from ..run import Array, Fit, Run
from ..setups.perceptrons.tasks import Task, finite_ends, on_digits, on_spirals
from ..setups.planar.problem import TWO_TURNS, Method
from ..setups.planar.saddles import count, saddles
from ..setups.shared.curves import HEADINGS

ROUNDING = 1e-5  # share of a surface's range that counts as flat, since a surface is flat near a saddle
SETTINGS = {"MNIST": {"lr": 0.15}, "two turns": {"lr": 0.25, "friction": 0.5}}


def _adlala(task: Task, noise: int) -> Method:
    """AdLaLa, with other noise for a second run from the same weights."""

    def make(ensemble: Ensemble) -> torch.optim.Optimizer:
        settings = {**SETTINGS[task.name], "coupling": 0.1, "driving_noise": 0.01}
        return presets.adlala(ensemble, **settings, seed=ensemble.seeds + noise)

    return make


def _surface(task: Task, fits: list[Fit], grid: int) -> landscape.Surface:
    """All runs' surfaces; NaN for runs that diverged."""
    start = task.ensemble()
    (first, end), lost = finite_ends(start, fits[0].ensemble)
    (_, other), also_lost = finite_ends(start, fits[1].ensemble)
    found = landscape.surface(start, first, (end, other), task.test_loss(), grid, nonfinite="keep", progress=False)
    found.values[:, lost | also_lost] = torch.nan
    return found


def _over_runs(values: list[float]) -> Array:
    """(runs,) of all ranks."""
    gathered: Array = ranks.gather(np.array([values]))[0]
    return gathered


def _climbs(surface: landscape.Surface) -> Array:
    """(runs,) the share of β whose line from the start, α from 0 to 1, crosses a barrier."""
    found = []
    for field in surface["test loss"]:
        barriers = [float(landscape.classify(surface.x, along) == "barrier") for along in field.unbind(-1)]
        found.append(sum(barriers) / len(barriers) if bool(field.isfinite().all()) else np.nan)
    return _over_runs(found)


def _counts(surface: landscape.Surface) -> Array:
    """(runs,) saddle points inside the surface."""
    found = [
        float(count(_saddles(field))) if bool(field.isfinite().all()) else np.nan for field in surface["test loss"]
    ]
    return _over_runs(found)


def _saddles(field: Tensor) -> Tensor:
    return saddles(field, ROUNDING * float(field.max() - field.min()))


def _draw(run: Run, surfaces: dict[str, landscape.Surface]) -> None:
    """The first run's surfaces, as contours over (α, β)."""
    caption = "Test loss of the first run; the start is the left edge, the two minima are the right corners."
    with run.figure("surfaces", caption, ncols=len(surfaces), figsize=(5.2 * len(surfaces), 4.2)) as axes:
        for panel, (name, surface) in zip(axes[0], surfaces.items(), strict=True):
            field = surface["test loss"][0]
            drawn = panel.contourf(surface.x, surface.y, field.log10().mT, levels=24)
            panel.figure.colorbar(drawn, ax=panel, label="log₁₀ of the test loss")
            inside = _saddles(field).nonzero() + 1
            if len(inside):
                panel.plot(surface.x[inside[:, 0]], surface.y[inside[:, 1]], "x", color="red", label="saddle")
                panel.legend(loc="lower left", fontsize=8)
            panel.set(title=name, xlabel="α: from the start to the minima", ylabel="β: between the minima")


@experiment(
    "fig3.5",
    title="Surfaces through a start and two minima",
    source="thesis Fig. 3.5",
    says="On the surface through one start and two minima of the same optimizer, test loss falls monotonically from "
    "start to minima on MNIST, while surfaces of two-turn spirals frequently have saddle points.",
    data=("mnist",),
    smoke={"replicas": 2, "steps": 4, "epochs": 1, "train": 300, "test": 100, "grid": 7},
    ci={"replicas": 4, "steps": 20_000, "epochs": 3, "train": 20_000, "test": 1000, "grid": 25},
    paper={"replicas": 20, "steps": 20_000, "epochs": 20, "train": None, "test": None, "grid": 41},
)
def fig3_5(run: Run, settings: SimpleNamespace) -> list[Claim]:
    digits = on_digits(run, (100,), settings.train, settings.test)
    spiral = on_spirals(run, "two turns", TWO_TURNS, (20,))
    steps = {"MNIST": settings.epochs * digits.per_epoch, "two turns": settings.steps}
    fits = {
        task.name: [task.fit(f"training {n + 1}", _adlala(task, n), steps[task.name], stream=n) for n in range(2)]
        for task in (digits, spiral)
    }
    surfaces = {task.name: _surface(task, fits[task.name], settings.grid) for task in (digits, spiral)}
    everything = {fit.arm: fit for values in fits.values() for fit in values}
    run.save_curves(everything)
    run.summary(everything, HEADINGS)
    climbs = {name: _climbs(surface) for name, surface in surfaces.items()}
    counts = {name: _counts(surface) for name, surface in surfaces.items()}
    has = {name: np.minimum(values, 1) for name, values in counts.items()}
    rows = [[name, *(f"{np.nanmean(values[name]):.3g}" for values in (climbs, has, counts))] for name in surfaces]
    columns = [
        "data",
        "share of lines from the start with a barrier",
        "share of runs with saddle points",
        "saddle points a run",
    ]
    run.table("Surfaces", columns, rows)
    _draw(run, surfaces)
    run.note(
        "The thesis does not name the optimizer that is run twice; here it is AdLaLa, from the same "
        "weights with other batches and other noise. A grid point is a saddle if its eight neighbours are higher, "
        f"lower, higher, lower in a circle around it, by more than {ROUNDING:g} of the surface's range; adjacent ones "
        "count once."
    )
    half = np.full(run.replicas, 0.5)
    return [
        greater("MNIST: most lines from the start only fall", "consistent decline", 1 - climbs["MNIST"], half),
        greater("spirals: lines from the start cross more barriers than MNIST's", "fundamental difference",
                climbs["two turns"], climbs["MNIST"]),
        most("spirals: most surfaces have saddle points", "frequently", has["two turns"]),
        greater("spirals have more saddle points than MNIST", "fundamental difference", counts["two turns"],
                counts["MNIST"]),
    ]  # fmt: skip
