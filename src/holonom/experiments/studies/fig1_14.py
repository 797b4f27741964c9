"""Thesis Fig. 1.14: RA-1's eigenvalues avoid each other."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ...multirate.resonance import reversible_averaging_map
from ..base import experiment
from ..claims import Claim, fact
from ..run import Run
from ..setups.mts.resonances import OMEGA_SQUARED, ROUNDING, draw_arguments, least_gap, spectra


@experiment(
    "fig1.14",
    title="RA-1: arguments of the eigenvalues",
    source="thesis Fig. 1.14, Example 1.2.4",
    says="For Ω² = 10 the eigenvalues of RA-1 have modulus 1 and do not cross as those of RA-0 do, which removes the "
    "instability.",
    smoke={"replicas": 1, "points": 600},
    ci={"replicas": 1, "points": 6000},
    paper={"replicas": 1, "points": 20_000},
)
def fig1_14(run: Run, settings: SimpleNamespace) -> list[Claim]:
    def step(h: float) -> np.ndarray:
        return reversible_averaging_map(h, OMEGA_SQUARED, drift=True)

    times = np.linspace(0.005, 1.9, settings.points)
    values = spectra(step, times)
    with run.figure("arguments", "Arguments of all four eigenvalues of RA-1.", figsize=(7.5, 4)) as axes:
        draw_arguments(axes[0, 0], times, values)
    resolved = times > 0.1  # all arguments vanish with h
    gap = least_gap(values)[resolved]
    off = float(np.abs(np.abs(values) - 1).max())
    run.table("Eigenvalues of RA-1", ["largest ||λ| − 1|", "least gap"], [[f"{off:.1e}", f"{gap.min():.4f}"]])
    return [
        fact("all eigenvalues have modulus 1", "constantly 1", off, off < ROUNDING, detail="largest ||λ| − 1|"),
        fact(
            "the eigenvalues do not cross", "no crossing", float(gap.min()), gap.min() > 0.01,
            detail=f"least gap of two arguments, at h = {times[resolved][gap.argmin()]:.3f}",
        ),
    ]  # fmt: skip
