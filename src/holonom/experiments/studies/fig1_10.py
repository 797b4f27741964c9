"""Thesis Fig. 1.10: friction mitigates r-RESPA's resonances; the error of ⟨q²⟩ without a sample."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ...multirate.mts import respa, thermal_drift
from ...multirate.resonance import langevin_respa_map, stationary_covariance
from ..base import experiment
from ..claims import Claim, fact, near
from ..run import Array, Run
from ..setups.mts.resonances import OMEGA, unstable_bands

SUBSTEPS, EXACT = 20, 1 / (1 + OMEGA**2)


@experiment(
    "fig1.10",
    title="Langevin r-RESPA: error of ⟨q²⟩ against step and friction",
    source="thesis Fig. 1.10, Example 1.2.3",
    says="At τ = 1 and Ω = 3 the error of ⟨q²⟩ = τ/(1 + Ω²) is large around the resonances h = kπ/Ω, with regions of "
    "instability; larger frictions mitigate both.",
    smoke={"replicas": 4, "grid": 24, "steps": 2000},
    ci={"replicas": 50, "grid": 80, "steps": 20_000},
    paper={"replicas": 100, "grid": 200, "steps": 1_000_000},
)
def fig1_10(run: Run, settings: SimpleNamespace) -> list[Claim]:
    steps = np.linspace(0.05, 4.0, settings.grid)
    frictions = np.geomspace(0.01, 10, settings.grid)
    error = np.array([[abs(mean_square(h, g) - EXACT) for h in steps] for g in frictions])
    stable = np.isfinite(error)
    picture(run, steps, frictions, error)
    low, high = frictions < 0.1, frictions > 2
    share = {name: float((~stable[rows]).mean()) for name, rows in (("γ < 0.1", low), ("γ > 2", high))}
    typical = {
        name: float(np.median(np.where(stable, error, np.inf)[rows])) / EXACT
        for name, rows in (("γ < 0.1", low), ("γ > 2", high))
    }
    rows = [[name, f"{100 * share[name]:.1f} %", f"{100 * typical[name]:.1f} %"] for name in share]
    run.table("What friction does", ["friction", "unstable (h, γ)", "median error of ⟨q²⟩"], rows)
    h, friction = 0.6, 1.0
    sampled = sample(h, friction, settings.steps, run.replicas, run.seed)
    exact = mean_square(h, friction)
    fine = np.linspace(0.05, 3.3 * np.pi / OMEGA, 400)
    ends = np.array([end for _, end in unstable_bands(lambda h: linear_step(h, frictions[0])[0], fine)])
    miss = float(np.abs(ends * OMEGA / np.pi - np.arange(1, len(ends) + 1)).max(initial=0.0))
    run.note(
        f"The step is linear, so its stationary law is the solution of S = MSMᵀ + NNᵀ: no sample, no sampling error. "
        f"k = {SUBSTEPS} substeps of BAOAB; the thesis does not say its k. The last claim samples one point of the map."
    )
    return [
        fact(
            "more friction, less instability", "mitigated by larger γ", share["γ < 0.1"] - share["γ > 2"],
            share["γ > 2"] < share["γ < 0.1"], detail=f"shares of unstable pairs: {rows[0][1]} and {rows[1][1]}",
        ),
        fact(
            "more friction, less error", "mitigated by larger γ", typical["γ < 0.1"] - typical["γ > 2"],
            typical["γ > 2"] < typical["γ < 0.1"], detail="difference of median relative errors",
        ),
        fact(
            "at small friction instability ends at h = kπ/Ω", "white regions (figure)", miss,
            len(ends) > 0 and miss < 0.05, detail=f"largest miss of hΩ/π at γ = {frictions[0]:g}, {len(ends)} regions",
        ),
        near(
            f"sampled ⟨q²⟩ at h = {h}, γ = {friction:g}", f"{exact:.5f} by the matrix equation", sampled, exact,
            0.05 * exact,
        ),
    ]  # fmt: skip


def mean_square(h: float, friction: float) -> float:
    """⟨q²⟩ of the stationary law; infinite where there is none."""
    return float(stationary_covariance(*linear_step(h, friction))[0, 0])


def linear_step(h: float, friction: float) -> tuple[Array, Array]:
    return langevin_respa_map(h, OMEGA, friction, SUBSTEPS)


def sample(h: float, friction: float, steps: int, chains: int, seed: int) -> Array:
    """(chains,) means of q² along trajectories, without the first tenth."""
    draw = np.random.default_rng(seed)
    inner = respa(lambda q: OMEGA**2 * q, thermal_drift(friction, 1.0, lambda: draw.standard_normal(chains)))
    flow = respa(lambda q: q, inner, SUBSTEPS)
    q, p = np.zeros(chains), np.zeros(chains)
    total: Array = np.zeros(chains)
    for i in range(steps):
        q, p = flow(q, p, h)
        if i >= steps // 10:
            total += q * q
    return total / (steps - steps // 10)


def picture(run: Run, steps: Array, frictions: Array, error: Array) -> None:
    from matplotlib.colors import LogNorm

    caption = "Relative error of ⟨q²⟩; white: unstable. Dotted: h = kπ/Ω."
    with run.figure("error", caption, figsize=(7.5, 4.5)) as axes:
        panel = axes[0, 0]
        shown = np.ma.masked_invalid(error / EXACT).clip(1e-4, 10)
        image = panel.pcolormesh(steps, frictions, shown, norm=LogNorm(1e-4, 10), cmap="coolwarm", shading="nearest")
        for k in range(1, 4):
            panel.axvline(k * np.pi / OMEGA, color="black", linestyle=":", linewidth=0.8)
        panel.set(xlabel="step h", ylabel="friction γ", yscale="log")
        panel.figure.colorbar(image, ax=panel, label="|⟨q²⟩ − exact| / exact")
