"""Thesis Fig. 1.13: where RA-0's eigenvalues meet."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ...multirate.resonance import reversible_averaging_map
from ..base import experiment
from ..claims import Claim, fact
from ..run import Run
from ..setups.mts.resonances import OMEGA_SQUARED, draw_arguments, least_gap, shade, spectra, unstable_bands


@experiment(
    "fig1.13",
    title="RA-0: arguments of the eigenvalues",
    source="thesis Fig. 1.13, Example 1.2.4",
    says="For Ω² = 10 the arguments of RA-0's eigenvalues cross; where they meet, the method is unstable.",
    smoke={"replicas": 1, "points": 600},
    ci={"replicas": 1, "points": 6000},
    paper={"replicas": 1, "points": 20_000},
)
def fig1_13(run: Run, settings: SimpleNamespace) -> list[Claim]:
    def step(h: float) -> np.ndarray:
        return reversible_averaging_map(h, OMEGA_SQUARED, drift=False)

    times = np.linspace(0.005, 1.9, settings.points)
    values, bands = spectra(step, times), unstable_bands(step, times)
    with run.figure("arguments", "Arguments of all four eigenvalues of RA-0.", figsize=(7.5, 4)) as axes:
        draw_arguments(axes[0, 0], times, values)
        shade(axes[0, 0], bands)
        axes[0, 0].legend(frameon=False)
    gap = least_gap(values)
    unstable = np.abs(values).max(1) > 1 + 1e-5
    # Off the circle eigenvalues come as λ, 1/λ̄: two with the same argument, or all on the real axis.
    together = float(np.minimum(gap, np.pi - np.abs(np.angle(values)).max(1)).max(where=unstable, initial=0.0))
    run.table("Unstable bands", ["from h", "to h"], [[f"{a:.4f}", f"{b:.4f}"] for a, b in bands])
    return [
        fact("arguments meet", "the eigenvalues cross", float(gap.min()), gap.min() < 1e-6, detail="least gap"),
        fact(
            "eigenvalues off the unit circle share an argument", "crossing makes the instability", together,
            bool(unstable.any()) and together < 1e-6, detail=f"largest gap over {int(unstable.sum())} unstable steps",
        ),
    ]  # fmt: skip
