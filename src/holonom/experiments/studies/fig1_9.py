"""Thesis Fig. 1.9: r-RESPA resonates at h = kπ/Ω."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ...multirate.resonance import respa_map
from ..base import experiment
from ..claims import Claim, fact
from ..run import Run
from ..setups.mts.resonances import OMEGA, shade, spectra, unstable_bands


@experiment(
    "fig1.9",
    title="Resonances of r-RESPA on a stiff oscillator",
    source="thesis Fig. 1.9, Example 1.2.2",
    says="With the fast motion exact, the eigenvalues of an r-RESPA step on U_F = ½Ω²q², U_S = ½q² leave the unit "
    "circle just below every h = kπ/Ω; the stable regions in between shrink as h grows (Ω = 3).",
    smoke={"replicas": 1, "points": 1000},
    ci={"replicas": 1, "points": 6000},
    paper={"replicas": 1, "points": 20_000},
)
def fig1_9(run: Run, settings: SimpleNamespace) -> list[Claim]:
    def step(h: float) -> np.ndarray:
        return respa_map(h, OMEGA)

    multiples = np.arange(1, 6)
    expected = multiples * np.pi / OMEGA
    times = np.linspace(1e-3, 5.5 * np.pi / OMEGA, settings.points)
    bands = unstable_bands(step, times)[: len(multiples)]
    with run.figure("moduli", "Moduli of both eigenvalues; dotted: hΩ = kπ.", figsize=(7.5, 4)) as axes:
        panel = axes[0, 0]
        panel.plot(times * OMEGA, np.sort(np.abs(spectra(step, times)), 1), color="tab:blue")
        shade(panel, bands, OMEGA)
        for k in multiples:
            panel.axvline(k * np.pi, color="grey", linestyle=":", linewidth=0.8)
        panel.set(xlabel="hΩ", ylabel="|λ|", xticks=multiples * np.pi, xticklabels=[f"{k}π" for k in multiples])
        panel.legend(frameon=False)
    upper = np.array([high for _, high in bands])
    low = np.array([low for low, _ in bands])
    gaps = low - np.concatenate([[0.0], upper[:-1]])
    rows = [[k, f"{e:.6f}", f"{a:.6f}", f"{b:.6f}"] for k, e, (a, b) in zip(multiples, expected, bands, strict=True)]
    run.table("Unstable steps", ["k", "kπ/Ω", "from h", "to h"], rows)
    miss = float(np.abs(upper - expected).max())
    slope = (np.trace(step(expected[0] + 1e-5)) - np.trace(step(expected[0] - 1e-5))) / 2e-5
    return [
        fact("instability ends at h = kπ/Ω", "resonances at kπ/Ω", miss, miss < 1e-6, detail="largest miss of five"),
        fact(
            "λ₁ + λ₂ = −2 + (π/Ω)(h − π/Ω) near π/Ω", "Taylor expansion (1.37)", float(slope),
            abs(slope - np.pi / OMEGA) < 1e-6, detail=f"slope, expected {np.pi / OMEGA:.6f}",
        ),
        fact(
            "stable regions shrink", "shrink as h grows", float(gaps[-1] / gaps[0]), bool((np.diff(gaps) < 0).all()),
            detail="length of the fifth over the first",
        ),
    ]  # fmt: skip
