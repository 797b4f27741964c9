"""Paper Fig. D2: a small temperature in orthogonality-constrained training."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Fit, Run
from ..setups.planar.spiral_depth import PER_EPOCH, constrained, data
from ..setups.shared.curves import HEADINGS, late_mean

TEMPERATURES = (0.0, 1e-6)
COLD, WARM = "τ = 0", "τ = 1e-6"


@experiment(
    "figD2",
    title="Temperature in orthogonality-constrained training",
    source="paper Fig. D2, thesis Fig. 4.8",
    says="On the four-turn spiral o-CoLA-od with τ = 1e-6 trains faster than with τ = 0 and often ends slightly more "
    "accurate; h = 0.1, 5 runs.",
    smoke={"replicas": 2, "depths": (3,), "epochs": 2},
    ci={"replicas": 3, "depths": (5,), "epochs": 400},
    paper={"replicas": 5, "depths": (3, 4, 5, 6, 8), "epochs": 600},
)
def figD2(run: Run, settings: SimpleNamespace) -> list[Claim]:
    sets = data(run)
    by_depth = {
        depth: constrained(run, f"o-CoLA-od, p={depth}", sets, depth, settings.epochs, TEMPERATURES).split([COLD, WARM])
        for depth in settings.depths
    }
    named = {f"{arm}, p={depth}": fit for depth, fits in by_depth.items() for arm, fit in fits.items()}
    run.save_curves(named)
    run.summary(named, HEADINGS)
    picture(run, by_depth)
    run.note(
        "The papers do not say what faster means; here it is the test accuracy averaged over the whole of training. "
        "The final accuracy is that of the last tenth. "
        f"Both claims average every run over the depths {', '.join(map(str, settings.depths))}."
    )
    final = {arm: np.mean([late_mean(fits[arm]) for fits in by_depth.values()], 0) for arm in (COLD, WARM)}
    along = {arm: np.mean([throughout(fits[arm]) for fits in by_depth.values()], 0) for arm in (COLD, WARM)}
    return [
        greater("temperature speeds up training", "faster", along[WARM], along[COLD]),
        greater("temperature raises the final test accuracy", "often slightly", final[WARM], final[COLD]),
    ]


def throughout(fit: Fit) -> Array:
    """(runs,) test accuracy, averaged over the whole of training."""
    mean: Array = fit.curves["test_accuracy"].mean(0)
    return mean


def picture(run: Run, by_depth: dict[int, dict[str, Fit]]) -> None:
    caption = "Test accuracy of o-CoLA-od with and without noise, a panel for each depth: mean and range over runs."
    with run.figure("figD2", caption, ncols=len(by_depth), figsize=(3.2 * len(by_depth), 3.6), sharey=True) as axes:
        for panel, (depth, fits) in zip(axes[0], by_depth.items(), strict=True):
            for name, fit in fits.items():
                values = 100 * fit.curves["test_accuracy"]
                (line,) = panel.plot(fit.steps / PER_EPOCH, values.mean(1), label=name)
                low, high = values.min(1), values.max(1)
                panel.fill_between(fit.steps / PER_EPOCH, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
            panel.set(title=f"{depth} hidden layers", xlabel="epoch")
            panel.grid(alpha=0.3)
        axes[0, 0].set_ylabel("test accuracy, %")
        axes[0, -1].legend(frameon=False, loc="lower right")
