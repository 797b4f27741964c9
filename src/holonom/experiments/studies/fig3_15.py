"""Thesis Fig. 3.15: a short stretch of DHSGD before SGD."""

from __future__ import annotations

from types import SimpleNamespace

from ... import presets
from ..base import experiment
from ..claims import Claim, greater, near
from ..run import Fit, Run
from ..setups.planar.bar_charts import grouped
from ..setups.planar.methods import grid
from ..setups.planar.problem import FOUR_TURNS, problem
from ..setups.shared.curves import HEADINGS, best_arm

SGD_RATES = (0.05, 0.1, 0.15, 0.2)

STEPS = 50_000  # published


@experiment(
    "fig3.15",
    title="DHSGD for a start, then SGD",
    source="thesis Fig. 3.15",
    says="On the four-turn spiral SGD reaches 70 % in 50,000 steps. Started with 2500 steps of DHSGD it does "
    "significantly better, for SGD steps of 0.05 … 0.2 (1000 points, 2 % batches, mean of 4 runs).",
    smoke={"replicas": 2, "warm_up": 2, "steps": 4, "rates": (0.1, 0.2)},
    ci={"replicas": 4, "warm_up": 2500, "steps": 10_000, "rates": (0.1, 0.2, 0.3)},
    paper={"replicas": 20, "warm_up": 2500, "steps": STEPS, "rates": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)},
)
def fig3_15(run: Run, settings: SimpleNamespace) -> list[Claim]:
    task = problem(run, FOUR_TURNS, hidden=100, validate=True)
    places = [(first, then) for first in settings.rates for then in SGD_RATES]
    starters, followers = ([{"lr": rate} for rate in rates] for rates in zip(*places, strict=True))
    warm = task.fit("DHSGD", grid(presets.dhsgd, starters), settings.warm_up, repeats=len(places))
    ensemble, rest = warm.ensemble, settings.steps - settings.warm_up
    sgd = grid(presets.sgld, followers, temperature=0.0)
    whole = task.continue_fit("SGD after DHSGD", ensemble, sgd(ensemble), rest, done=settings.warm_up)
    mixed = whole.split([f"DHSGD h = {first:g}, SGD h = {then:g}" for first, then in places])
    alone = grid(presets.sgld, [{"lr": rate} for rate in SGD_RATES], temperature=0.0)
    plain = task.fit("SGD", alone, settings.steps, repeats=len(SGD_RATES)).split([f"SGD h = {r:g}" for r in SGD_RATES])
    run.save_curves({**plain, **mixed})
    run.summary({**plain, **mixed}, HEADINGS)
    best_plain, best_mixed = plain[best_arm(plain)], mixed[best_arm(mixed)]
    _draw(run, plain, mixed, settings)
    run.note(
        "DHSGD's step sizes and the number of nodes (100, as in Figs. 3.10 and 3.16) are not in the text. SGD "
        "alone and the pair are compared at the step sizes with the highest final accuracy on points drawn for that."
    )
    reached = near("SGD alone reaches 70 %", "70 %", best_plain.final("test_accuracy"), 0.70, 0.05)
    return [
        greater(
            "SGD ends better after DHSGD than alone",
            "significantly",
            best_mixed.final("test_accuracy"),
            best_plain.final("test_accuracy"),
        ),
        *([reached] if settings.steps == STEPS else []),
    ]


def _draw(run: Run, plain: dict[str, Fit], mixed: dict[str, Fit], settings: SimpleNamespace) -> None:
    alone, after = ([fit.final("test_accuracy") for fit in fits.values()] for fits in (plain, mixed))
    count = len(SGD_RATES)
    series = {f"{rate:g}": [alone[i], *after[i::count]] for i, rate in enumerate(SGD_RATES)}
    caption = "Final test accuracy against DHSGD's step size, mean and standard error."
    with run.figure("bars", caption, figsize=(8, 4)) as axes:
        grouped(axes[0, 0], ["none", *(f"{rate:g}" for rate in settings.rates)], series, "h of SGD")
        axes[0, 0].set_xlabel(f"h of DHSGD, for the first {settings.warm_up} steps")
