"""Thesis Fig. 1.12: the eigenvalue moduli of RA-0 leave 1, those of RA-1 do not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ...multirate.resonance import reversible_averaging_map
from ..base import experiment
from ..claims import Claim, fact
from ..run import Run
from ..setups.mts.resonances import OMEGA_SQUARED, ROUNDING, shade, spectra, unstable_bands

LONGEST = 1.9  # RA-1's own limit is that of its slow kicks and drifts, close to Verlet's h = 2


@experiment(
    "fig1.12",
    title="Reversible averaging: moduli of the eigenvalues",
    source="thesis Fig. 1.12, Example 1.2.4",
    says="For Ω² = 10 the eigenvalue moduli of RA-0 exceed 1 at resonant steps; with linear drift (RA-1) they are 1 "
    "for every step.",
    smoke={"replicas": 1, "points": 600},
    ci={"replicas": 1, "points": 6000},
    paper={"replicas": 1, "points": 20_000},
)
def fig1_12(run: Run, settings: SimpleNamespace) -> list[Claim]:
    times = np.linspace(0.005, LONGEST, settings.points)
    steps = {
        "RA-0": lambda h: reversible_averaging_map(h, OMEGA_SQUARED, drift=False),
        "RA-1": lambda h: reversible_averaging_map(h, OMEGA_SQUARED, drift=True),
    }
    moduli = {name: np.sort(np.abs(spectra(step, times)), 1) for name, step in steps.items()}
    bands = unstable_bands(steps["RA-0"], times)
    with run.figure("moduli", "Moduli of all four eigenvalues.", nrows=2, figsize=(7.5, 5.5), sharex=True) as axes:
        for panel, (name, values) in zip(axes[:, 0], moduli.items(), strict=True):
            panel.plot(times, values, color="tab:blue", linewidth=1)
            panel.set(ylabel=f"|λ|, {name}", ylim=(0, 1.1 * moduli["RA-0"].max()))
        shade(axes[0, 0], bands)
        axes[0, 0].legend(frameon=False)
        axes[1, 0].set_xlabel("step h")
    rows = [[f"{low:.4f}", f"{high:.4f}", f"{OMEGA_SQUARED * high / np.pi:.3f} π"] for low, high in bands]
    run.table("Unstable steps of RA-0", ["from h", "to h", "Ω²h at the end"], rows)
    largest = float(moduli["RA-0"].max())
    deviation = float(np.abs(moduli["RA-1"] - 1).max())
    return [
        fact("RA-0 resonates", "moduli above 1", largest, largest > 1.01, detail=f"largest |λ|; {len(bands)} bands"),
        fact(
            "RA-1 has |λ| = 1 for every step", "constantly 1", deviation, deviation < ROUNDING,
            detail=f"largest ||λ| − 1| for h ≤ {LONGEST}",
        ),
    ]  # fmt: skip
