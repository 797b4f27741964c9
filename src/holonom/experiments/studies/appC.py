"""Paper section 3 and appendix C: gradients against depth, with and without orthogonal weights."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from ...ensemble import Ensemble
from ...metrics import GradientNorms, gradient_norms
from .. import ranks
from ..base import experiment
from ..claims import Claim, greater, most
from ..run import Array, Fit, Run
from ..setups.planar.spiral_depth import constrained, data, free, loss
from ..setups.shared.curves import HEADINGS, late_mean

FREE, STARTED, ORTHOGONAL = "SGD", "orthogonal start", "o-CoLA-od"
ROUNDING = 1e-4


@experiment(
    "appC",
    title="Gradient norms against depth",
    source="paper section 3 and appendix C, thesis 4.3",
    says="Constraints can reduce vanishing and exploding gradients: orthogonal weights limit how the gradient changes "
    "from layer to layer of a deep network. The papers give no figure of it.",
    smoke={"replicas": 2, "depths": (3,), "epochs": 2},
    ci={"replicas": 3, "depths": (4, 8), "epochs": 60},
    paper={"replicas": 10, "depths": (2, 4, 8, 16, 32), "epochs": 600},
)
def app_c(run: Run, settings: SimpleNamespace) -> list[Claim]:
    sets = data(run)
    by_depth = {depth: arms(run, sets, depth, settings.epochs) for depth in settings.depths}
    named = {f"{arm}, p={depth}": fit for depth, fits in by_depth.items() for arm, fit in fits.items()}
    run.save_curves(named)
    profiles = {
        arm: run.once(f"layers of {arm}", lambda fit=fit: by_layer(fit.ensemble, sets))  # type: ignore[misc]
        for arm, fit in by_depth[max(settings.depths)].items()
    }
    run.summary(named, HEADINGS)
    table(run, by_depth)
    picture(run, by_depth, profiles)
    run.note(
        "The networks, data and methods are those of Fig. 4, with more depths; the papers show no numbers, so size and "
        "measure are ours. The factor is that by which ‖∂L/∂z‖, z being what a layer hands on, changes per layer from "
        "the last to the first hidden layer, on all training points: 1 keeps gradients, less lets them vanish, more "
        "explode. A gradient that is zero in the first layer has an infinite logarithm and counts as that. After "
        "training is the mean over its last tenth."
    )
    return [claim for depth, fits in by_depth.items() for claim in verdicts(depth, fits)]


def arms(run: Run, sets: list[Tensor], depth: int, epochs: int) -> dict[str, Fit]:
    def growth(ensemble: Ensemble) -> dict[str, Tensor]:
        factors = torch.stack([norms.growth(0, -2) for norms in _norms(ensemble, sets)])
        return {"growth": factors, "decades": factors.log10().abs()}

    return {
        FREE: free(run, f"{FREE}, p={depth}", sets, depth, epochs, also=growth),
        STARTED: free(run, f"{STARTED}, p={depth}", sets, depth, epochs, orthogonal=True, also=growth),
        ORTHOGONAL: constrained(run, f"{ORTHOGONAL}, p={depth}", sets, depth, epochs, also=growth),
    }


def _norms(ensemble: Ensemble, sets: list[Tensor]) -> list[GradientNorms]:
    """Of every replica, on its training points."""
    x, y, *_ = sets
    return [gradient_norms(ensemble.alone(i), loss, x[i], y[i]) for i in range(ensemble.replicas)]


def by_layer(ensemble: Ensemble, sets: list[Tensor]) -> Array:
    """(runs, layers) signals."""
    local = torch.stack([norms.signals for norms in _norms(ensemble, sets)]).numpy()
    gathered: Array = ranks.gather(local.T).T
    return gathered


def verdicts(depth: int, fits: dict[str, Fit]) -> list[Claim]:
    """Distances from 1 are those of logarithms, in decades per layer."""
    start = {arm: fit.curves["decades"][0] for arm, fit in fits.items()}
    late = {arm: late_mean(fit, "decades") for arm, fit in fits.items()}
    name = f"{depth} hidden layers"
    return [
        greater(f"{name}: at the start gradients change less from layer to layer than PyTorch's start lets them",
                "reduced", start[FREE], start[ORTHOGONAL], diverged=math.inf),
        greater(f"{name}: after training they change less than SGD's", "reduced", late[FREE], late[ORTHOGONAL],
                diverged=math.inf, by="median"),
        greater(f"{name}: after training they change less than those of SGD from the same start", "reduced",
                late[STARTED], late[ORTHOGONAL], diverged=math.inf, by="median"),
        most(f"{name}: with o-CoLA-od they never grow on their way back", "limited",
             fits[ORTHOGONAL].curves["growth"].max(0) <= 1 + ROUNDING),
    ]  # fmt: skip


def table(run: Run, by_depth: dict[int, dict[str, Fit]]) -> None:
    rows = [
        [f"{arm}, p = {depth}", *(f"{np.nanmedian(v):.3g}" for v in _summary(fit))]
        for depth, fits in by_depth.items()
        for arm, fit in fits.items()
    ]
    run.table(
        "Factor by which the gradient changes per layer, medians over runs",
        ["method", "at the start", "after training", "smallest in training", "largest in training"],
        rows,
    )


def _summary(fit: Fit) -> tuple[Array, ...]:
    curve = fit.curves["growth"]
    return curve[0], late_mean(fit, "growth"), curve.min(0), curve.max(0)


def picture(run: Run, by_depth: dict[int, dict[str, Fit]], profiles: dict[str, Array]) -> None:
    deepest = max(by_depth)
    caption = (
        "Left: factor per layer against depth, at the start (dotted) and after training; median and range over runs. "
        f"Right: norm of the gradient of every layer's output after training with {deepest} hidden layers, median "
        "over runs."
    )
    with run.figure("appC", caption, ncols=2, figsize=(11, 4.2)) as axes:
        factors, layers = axes[0]
        for number, arm in enumerate((FREE, STARTED, ORTHOGONAL)):
            columns = [_summary(fits[arm])[:2] for fits in by_depth.values()]
            for when, style in ((0, ":"), (1, "-")):
                values = np.stack([column[when] for column in columns])
                factors.plot(list(by_depth), np.nanmedian(values, 1), style, marker="o", color=f"C{number}",
                             label=arm if when else None)  # fmt: skip
                if when:
                    ends = np.nanmin(values, 1), np.nanmax(values, 1)
                    factors.fill_between(list(by_depth), *ends, color=f"C{number}", alpha=0.15, linewidth=0)
            rows = profiles[arm]
            layers.plot(range(1, rows.shape[1] + 1), np.nanmedian(rows, 0), marker=".", label=arm)
        factors.axhline(1, color="black", linewidth=0.6)
        factors.set(xlabel="hidden layers p", ylabel="factor per layer, going back", xscale="log")
        factors.set_xticks(list(by_depth), [str(depth) for depth in by_depth])
        factors.minorticks_off()
        layers.set(xlabel="layer", ylabel="‖∂L/∂z‖", yscale="log")
        factors.legend(frameon=False)
