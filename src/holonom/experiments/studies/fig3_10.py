"""Thesis Fig. 3.10: AdLaLa at one setting against sweeps of SGD, SGLD and Adam."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ... import presets
from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Fit, Run
from ..setups.planar.bar_charts import grouped
from ..setups.planar.methods import adam, adlala, grid, lol, temperature_of
from ..setups.planar.problem import FOUR_TURNS, problem
from ..setups.shared.curves import HEADINGS, best_arm, mean_over_training

NOISES = (0.0, 0.005, 0.01, 0.05, 0.1)


@experiment(
    "fig3.10",
    title="AdLaLa against sweeps of SGD, SGLD and Adam on the four-turn spiral",
    source="thesis Fig. 3.10",
    says="With 100 nodes, 1000 points and 2 % batches, AdLaLa at h = 0.25, τ = 1e-4, γ = 0.1, σ_A = 0.01, ε = 0.05 is "
    "ahead of SGD and SGLD (σ up to 0.1) and of Adam at every step size tried.",
    smoke={"replicas": 2, "steps": 4, "rates": (0.1, 0.4), "adam_rates": (0.005,)},
    ci={"replicas": 4, "steps": 10_000, "rates": (0.1, 0.2, 0.4), "adam_rates": (0.005, 0.01)},
    paper={
        "replicas": 20,
        "steps": 50_000,
        "rates": (0.05, 0.1, 0.2, 0.4, 0.8),
        "adam_rates": (0.001, 0.005, 0.01, 0.02, 0.05),
    },
)
def fig3_10(run: Run, settings: SimpleNamespace) -> list[Claim]:
    task = problem(run, FOUR_TURNS, hidden=100, validate=True)
    fits = {
        "AdLaLa": task.fit("AdLaLa", adlala(0.25, friction=0.1, coupling=0.05), settings.steps),
        "LOL": task.fit("LOL", lol(0.25), settings.steps),
    }
    places = [(rate, noise) for noise in NOISES for rate in settings.rates]
    points = [{"lr": rate, "temperature": temperature_of(noise)} for rate, noise in places]
    whole = task.fit("SGD and SGLD", grid(presets.sgld, points), settings.steps, repeats=len(points))
    swept = whole.split([f"{'SGLD' if noise else 'SGD'} h = {rate:g}, σ = {noise:g}" for rate, noise in places])
    adams = {
        f"Adam h = {rate:g}": task.fit(f"Adam h = {rate:g}", adam(rate), settings.steps) for rate in settings.adam_rates
    }
    everything = {**fits, **swept, **adams}
    run.save_curves(everything)
    run.summary(everything, HEADINGS)
    rivals = {
        "SGD": _best_of(swept, "SGD "),
        "SGLD": _best_of(swept, "SGLD"),
        "Adam": _best_of(adams, "Adam"),
    }
    best_of_each = {**fits, **{fit.arm: fit for fit in rivals.values()}}
    run.curves(
        best_of_each, "test_accuracy", "test accuracy", "Each method at its best setting: mean and 10–90 % band."
    )
    _draw_bars(run, fits["AdLaLa"], swept, adams, settings)
    run.note(
        "The figure's step sizes and number of steps are not in the text; the sweeps here span what its neighbours "
        "use. SGD, SGLD and Adam are compared at the best of their settings, chosen by the final accuracy on points "
        "drawn for that. LOL (h = 0.25, γ₁ = 0.01, τ₁ = 1e-3: the thesis's rule of thumb) is not in the figure."
    )
    reference = fits["AdLaLa"]
    ahead = [
        greater(f"AdLaLa ends ahead of {name} at its best", "ahead (figure)", final(reference), final(fit))
        for name, fit in rivals.items()
    ]
    faster = [
        greater(
            f"AdLaLa is more accurate over training than {name}",
            "faster",
            mean_over_training(reference),
            mean_over_training(fit),
        )
        for name, fit in rivals.items()
    ]
    return [*ahead, *faster]


def final(fit: Fit) -> Array:
    return fit.final("test_accuracy")


def _best_of(fits: dict[str, Fit], family: str) -> Fit:
    family_fits = {name: fit for name, fit in fits.items() if name.startswith(family)}
    return family_fits[best_arm(family_fits)]


def _draw_bars(
    run: Run, reference: Fit, swept: dict[str, Fit], adams: dict[str, Fit], settings: SimpleNamespace
) -> None:
    finals = [final(fit) for fit in swept.values()]
    count = len(settings.rates)
    series = {f"{noise:g}": finals[i * count : (i + 1) * count] for i, noise in enumerate(NOISES)}
    caption = "Final test accuracy, mean and standard error. Dotted: AdLaLa. Left: SGD (σ = 0) and SGLD; right: Adam."
    with run.figure("bars", caption, ncols=2, figsize=(11, 4.2), width_ratios=(3, 2), sharey=True) as axes:
        left, right = axes[0]
        grouped(left, [f"{rate:g}" for rate in settings.rates], series, "σ")
        adam_series = {"Adam": [final(fit) for fit in adams.values()]}
        grouped(right, [f"{rate:g}" for rate in settings.adam_rates], adam_series, "")
        right.set(ylabel="", title="Adam")
        left.set_title("SGD (σ = 0) and SGLD")
        for panel in axes[0]:
            panel.axhline(100 * np.mean(final(reference)), color="black", linestyle=":")
            panel.set_xlabel("step size h")
