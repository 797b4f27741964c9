"""Constraints around AdamW and Muon: a character-level language model on WikiText-2. Nothing of it is published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Run
from ..setups.constrained.arms import ADAMH, ADAMW, ARMS, HARD, MUON, MUONH, ROWS, Arm
from ..setups.constrained.characters import Characters, Size
from ..setups.constrained.comparison import Job, final, picture, search, table, trainings

NONE = "not published"


@experiment(
    "lm",
    title="Constraints around AdamW and Muon: a character-level language model",
    source="not published",
    says="Fixed norms of rows or matrices take the place of weight decay: AdamW and Muon reach a lower loss with them "
    "than with their best decay, and the best rate moves less with the width of the network.",
    data=("wikitext-2",),
    splits=True,
    smoke={
        "replicas": 2, "width": 16, "layers": 1, "heads": 2, "context": 16, "batch": 4, "steps": 10, "warm_up": 2,
        "most": 2000, "settings": 2, "widths": (8, 16), "rates": 2,
    },
    ci={
        "replicas": 2, "width": 64, "layers": 2, "heads": 2, "context": 64, "batch": 16, "steps": 100, "warm_up": 10,
        "most": 100_000, "settings": 2, "widths": (32, 64), "rates": 2,
    },
    paper={
        "replicas": 3, "width": 384, "layers": 6, "heads": 6, "context": 256, "batch": 64, "steps": 1500,
        "warm_up": 100, "most": None, "settings": 6, "widths": (192, 768), "rates": 3,
    },
)  # fmt: skip
def lm(run: Run, settings: SimpleNamespace) -> list[Claim]:
    text, size = Characters(run, settings.most), Size.of(settings)
    chosen = search(text, ARMS, size, settings.settings, "validation loss")
    across = {
        (arm, width, k): Job(f"width {width}, {arm.title((lr, chosen[arm][1]))}", arm.optimizer((lr, chosen[arm][1])),
                             replace(size, width=width))
        for arm in (ADAMW, ROWS)
        for width in settings.widths
        for k, lr in enumerate(rates_around(chosen[arm][0], settings.rates))
    }  # fmt: skip
    found: dict[Any, Array] = trainings(text, {**final(chosen, size), **across})
    losses = {arm: found[arm] for arm in ARMS}
    moves = {
        arm: np.array([[found[arm, width, k][-2] for k in range(settings.rates)] for width in settings.widths])
        for arm in (ADAMW, ROWS)
    }
    picture(run, losses, size.steps, "nats a character")
    table(run, "Loss in nats a character", chosen, losses)
    widths_table(run, moves, settings)
    notes(run, settings)
    at_end = {arm: x[-1] for arm, x in losses.items()}
    better = ((ROWS, ADAMW), (ADAMH, ADAMW), (MUONH, MUON))
    return [
        *(
            greater(f"{one.name} beats {other.name}", NONE, at_end[other], at_end[one], diverged=math.inf)
            for one, other in better
        ),
        greater(f"{HARD.name} is behind {ADAMW.name}", NONE, at_end[HARD], at_end[ADAMW], diverged=math.inf),
        greater(
            f"the best rate moves less with the width: {ROWS.name}",
            NONE,
            shift(moves[ADAMW], settings),
            shift(moves[ROWS], settings),
            note="in powers of two, by a parabola through the losses of a run at its rates",
        ),
    ]


def rates_around(lr: float, count: int) -> list[float]:
    return [lr * 2.0 ** (k - (count - 1) / 2) for k in range(count)]


def shift(losses: Array, settings: SimpleNamespace) -> Array:
    """(runs,) by how many powers of two the best rate differs between the widths."""
    best = np.array([[best_power(column) for column in rates.T] for rates in losses])
    moved: Array = np.abs(best[-1] - best[0])
    return moved


def best_power(losses: Sequence[float]) -> float:
    """Where the parabola through the losses of rates that double is smallest, within what was tried."""
    powers = np.arange(len(losses)) - (len(losses) - 1) / 2
    if len(losses) < 3 or not np.isfinite(losses).all():
        return float(powers[int(np.nanargmin(np.where(np.isfinite(losses), losses, np.inf)))])
    curvature, slope, _ = np.polyfit(powers, losses, 2)
    if curvature <= 0:
        return float(powers[int(np.argmin(losses))])
    return float(np.clip(-slope / (2 * curvature), powers[0], powers[-1]))


def widths_table(run: Run, moves: dict[Arm, Array], settings: SimpleNamespace) -> None:
    rows = [
        [arm.name, width, *(f"{np.mean(column):.4f}" for column in losses)]
        for arm, found in moves.items()
        for width, losses in zip(settings.widths, found, strict=True)
    ]
    powers = [f"lr · {factor:g}" for factor in rates_around(1.0, settings.rates)]
    run.table(
        "Validation loss by width and rate, around the best lr of the search", ["optimizer", "width", *powers], rows
    )


def notes(run: Run, settings: SimpleNamespace) -> None:
    run.note(
        f"{settings.layers} layers, width {settings.width}, {settings.heads} heads, contexts of {settings.context} "
        f"characters, batches of {settings.batch}, {settings.steps} steps: {settings.warm_up} of warm-up, linear decay "
        f"over the last two fifths. Gradients are clipped at 1; β = (0.9, 0.95). On a GPU products are in bfloat16, "
        f"weights in float32."
    )
    run.note(
        f"Each optimizer has {settings.settings} settings of its rate and one more number, chosen by the validation "
        f"text with one run that is not among those compared. The runs compared differ in initial weights and batches "
        f"and share both between optimizers. The test text is read once, by the chosen settings."
    )
