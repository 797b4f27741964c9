"""Constraints around AdamW and Muon: a character-level language model on WikiText-2. Nothing of it is published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Run
from ..setups.constrained.arms import ADAMH, ADAMW, ARMS, HARD, MUON, MUONH, ROWS, Arm
from ..setups.constrained.characters import LOOKS, Characters, Size, marks

Setting = tuple[float, float]
NONE = "not published"


@experiment(
    "lm",
    title="Constraints around AdamW and Muon: a character-level language model",
    source="not published",
    says="Fixed norms of rows or matrices take the place of weight decay: AdamW and Muon reach a lower loss with them "
    "than with their best decay, and the best rate moves less with the width of the network.",
    data=("wikitext-2",),
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
    chosen = {arm: search(run, text, arm, size, settings.settings) for arm in ARMS}
    losses = {
        arm: text.fit(arm.title(setting), arm.optimizer(setting), size, tests=True) for arm, setting in chosen.items()
    }
    moves = {arm: across_widths(text, arm, chosen[arm], size, settings) for arm in (ADAMW, ROWS)}
    picture(run, losses, size)
    run.table(
        f"Loss in nats a character, {run.replicas} runs",
        ["optimizer", "validation", "test", "runs (test)"],
        [
            [
                arm.title(chosen[arm]),
                *(f"{np.mean(x[i]):.4f}" for i in (-2, -1)),
                ", ".join(f"{v:.4f}" for v in x[-1]),
            ]
            for arm, x in losses.items()
        ],
    )
    widths_table(run, moves, settings)
    notes(run, settings)
    final = {arm: x[-1] for arm, x in losses.items()}
    better = ((ROWS, ADAMW), (ADAMH, ADAMW), (MUONH, MUON))
    return [
        *(
            greater(f"{one.name} beats {other.name}", NONE, final[other], final[one], diverged=math.inf)
            for one, other in better
        ),
        greater(f"{HARD.name} is behind {ADAMW.name}", NONE, final[HARD], final[ADAMW], diverged=math.inf),
        greater(
            f"the best rate moves less with the width: {ROWS.name}",
            NONE,
            shift(moves[ADAMW], settings),
            shift(moves[ROWS], settings),
            note="in powers of two, by a parabola through the losses of a run at its rates",
        ),
    ]


def search(run: Run, text: Characters, arm: Arm, size: Size, count: int) -> Setting:
    """The setting with the smallest loss on validation text, by one run that is none of those compared."""
    grid = arm.grid[:count]
    scores = [float(text.fit(f"search, {arm.title(s)}", arm.optimizer(s), size, alone=True)[-2].mean()) for s in grid]
    order = sorted(range(len(grid)), key=lambda i: np.nan_to_num(scores[i], nan=np.inf))
    run.table(
        f"Search: {arm.name}", ["lr", arm.second, "validation loss"],
        [[f"{grid[i][0]:g}", f"{grid[i][1]:g}", f"{scores[i]:.4f}"] for i in order],
    )  # fmt: skip
    best, rates = grid[order[0]], {lr for lr, _ in grid}
    if len(rates) > 2 and best[0] in (min(rates), max(rates)):
        run.note(f"The best lr of {arm.name}, {best[0]:g}, is at the edge of those tried.")
    return best


def across_widths(text: Characters, arm: Arm, setting: Setting, size: Size, settings: SimpleNamespace) -> Array:
    """(widths, rates, runs): validation losses around the best rate of the search."""
    found = []
    for width in settings.widths:
        there = Size(**{**vars(size), "width": width})
        options = [(lr, setting[1]) for lr in rates_around(setting[0], settings.rates)]
        found.append([text.fit(f"width {width}, {arm.title(one)}", arm.optimizer(one), there)[-2] for one in options])
    return np.array(found)


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


def picture(run: Run, losses: dict[Arm, Array], size: Size) -> None:
    with run.figure("validation", "Validation loss during training, mean over runs.", figsize=(7, 4.2)) as axes:
        for arm, found in losses.items():
            axes[0, 0].plot(marks(size.steps), found[:LOOKS].mean(1), label=arm.name)
        axes[0, 0].set(xlabel="step", ylabel="nats a character")
        axes[0, 0].grid(alpha=0.3)
        axes[0, 0].legend(frameon=False, fontsize=8)


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
