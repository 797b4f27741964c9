"""Paper Fig. 3: how sharply predictions change along cross-sections of the plane."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import presets
from ...ensemble import Ensemble
from ...metrics import cross_section
from .. import ranks
from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Run
from ..setups.planar.decision_boundaries import BOUND
from ..setups.planar.spiral_circle import METHODS, RADII, STEP, TEMPERATURE, data, fit
from ..setups.shared.curves import HEADINGS
from ..setups.shared.optimizers import initial_projection

AXES = {"x": "horizontal, y = 0", "y": "vertical, x = 0"}


@experiment(
    "fig3",
    title="Gradients of the prediction along cross-sections",
    source="paper Fig. 3, thesis Fig. 4.3",
    says="Averaged over 100 runs of 10,000 epochs, the prediction of C-SGLD changes less sharply from class to class "
    "than that of SGD along y = 0 and along x = 0, and the radius r₀ of the input layer controls how sharply.",
    smoke={"replicas": 2, "epochs": 1, "points": 101, "radii": (0.5, 2.0)},
    ci={"replicas": 4, "epochs": 600, "points": 1001, "radii": (0.5, 1.0, 2.0)},
    paper={"replicas": 100, "epochs": 10_000, "points": 1001, "radii": (0.25, 0.5, 1.0, 2.0, 5.0)},
)
def fig3(run: Run, settings: SimpleNamespace) -> list[Claim]:
    sets = data(run)
    fits = {name: fit(run, name, sets, settings.epochs) for name in METHODS}
    radii = list(settings.radii)

    def per_member(ensemble: Ensemble) -> Any:
        input_radius = ensemble.spread(radii)[:, None, None]
        radius: Any = (input_radius, RADII[1])
        return presets.c_cola_od(ensemble, STEP, radius, TEMPERATURE)

    with initial_projection():
        sweep = fit(run, "C-SGLD, input radii", sets, settings.epochs, per_member, repeats=len(radii))
    names = [f"C-SGLD, r₀ = {r:g}" for r in radii]
    everyone = {**fits, **sweep.split(names)}
    run.save_curves(everyone)
    run.summary(everyone, HEADINGS)

    sharpness = {axis: {name: gradients(run, one.ensemble, axis, settings.points) for name, one in fits.items()}
                 for axis in AXES}  # fmt: skip
    of_sweep = gradients(run, sweep.ensemble, "x", settings.points)
    by_radius = dict(zip(names, np.split(of_sweep, len(names)), strict=True))
    picture(run, by_radius, sharpness)
    steepest = {axis: {name: g.max(1) for name, g in arms.items()} for axis, arms in sharpness.items()}
    steepest["x"].update({name: g.max(1) for name, g in by_radius.items()})
    rows = [[name, *(f"{np.nanmean(steepest[axis][name]):.4g}" if name in steepest[axis] else "–" for axis in AXES)]
            for name in everyone]  # fmt: skip
    run.table("Steepest change of the prediction, mean over runs", ["method", *AXES.values()], rows)
    run.note(
        "The papers plot gradients of the prediction and give no number. The claims compare, run by run, the largest "
        "|∂p| along the line. The radii r₀ of the left panel are not given; weights outside a small circle start on it."
    )
    claims = [
        greater(
            f"SGD changes more sharply than C-SGLD ({words})", "sharper", arms["SGD"], arms["C-SGLD"], diverged=math.inf
        )
        for (axis, words) in AXES.items()
        for arms in [steepest[axis]]
    ]
    wide, narrow = names[int(np.argmax(radii))], names[int(np.argmin(radii))]
    name = f"the radius controls it: r₀ = {max(radii):g} is sharper than r₀ = {min(radii):g}"
    return [*claims, greater(name, "sharper", steepest["x"][wide], steepest["x"][narrow], diverged=math.inf)]


@torch.no_grad()
def gradients(run: Run, ensemble: Ensemble, axis: str, points: int) -> Array:
    """(runs, points) |∂p| along a line through the origin; NaN for a run that diverged."""
    ensemble.eval()

    def predict(places: Tensor) -> Tensor:
        return torch.sigmoid(ensemble(places).squeeze(-1))

    section = cross_section(predict, axis, bounds=(-BOUND, BOUND), points=points, device=run.device)
    sizes = section.gradients.abs().double().cpu().numpy()
    gathered: Array = ranks.gather(sizes.T, ensemble.repeats).T
    return gathered


def picture(run: Run, by_radius: dict[str, Array], sharpness: dict[str, dict[str, Array]]) -> None:
    caption = (
        "Size of the prediction's derivative along a line, mean over runs. Left: C-SGLD along y = 0 for several radii "
        "of the input layer's circles; middle and right: all methods along y = 0 and x = 0."
    )
    panels = [("x", "C-SGLD along y = 0", by_radius), *((a, AXES[a], arms) for a, arms in sharpness.items())]
    with run.figure("fig3", caption, ncols=3, figsize=(14, 4)) as axes:
        for panel, (axis, title, arms) in zip(axes[0], panels, strict=True):
            for name, sizes in arms.items():
                position = np.linspace(-BOUND, BOUND, sizes.shape[1])
                panel.plot(position, np.nanmean(sizes, 0), label=name, linewidth=1.2)
            panel.set(title=title, xlabel=axis, ylabel=f"|∂p/∂{axis}|", ylim=(0, None))
            panel.legend(frameon=False, fontsize=8)
