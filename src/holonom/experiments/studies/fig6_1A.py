"""Thesis Fig. 6.1A: lines between initial, trained and fresh weights of one perceptron on two data sets."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.perceptrons.tasks import line, on_digits, on_spirals
from ..setups.planar.methods import adam
from ..setups.planar.problem import FOUR_TURNS, TWO_TURNS
from ..setups.shared.curves import HEADINGS
from ..setups.shared.loss_lines import Line, mostly_barrier, mostly_none, table
from ..setups.shared.loss_lines import draw as draw_lines

HIDDEN, STEP = (50, 50), 5e-4
OWN, FRESH, UNTRAINED = "initial to trained", "fresh to trained", "initial to fresh"


@experiment(
    "fig6.1A",
    title="Lines to trained and untrained weights, MNIST and spirals",
    source="thesis Fig. 6.1A",
    says="Test loss of a perceptron with two hidden layers over 10 runs. On MNIST it falls monotonically on the line "
    "from the initial weights to the trained ones, and equally from any other initialisation. With the same network "
    "and optimizer, lines on the spiral cross barriers above the initial loss, higher still from other "
    "initialisations.",
    data=("mnist",),
    smoke={
        "replicas": 2,
        "epochs": 1,
        "spiral_epochs": 1,
        "train": 300,
        "test": 100,
        "spiral_points": (100, 50),
        "points": 11,
    },
    ci={
        "replicas": 5,
        "epochs": 3,
        "spiral_epochs": 300,
        "train": 20_000,
        "test": 2000,
        "spiral_points": (10_000, 5000),
        "points": 51,
    },
    paper={
        "replicas": 10,
        "epochs": 100,
        "spiral_epochs": 3000,
        "train": None,
        "test": None,
        "spiral_points": (10_000, 5000),
        "points": 51,
    },
)
def fig6_1a(run: Run, settings: SimpleNamespace) -> list[Claim]:
    digits = on_digits(run, HIDDEN, settings.train, settings.test)
    train, test = settings.spiral_points
    spirals = [
        on_spirals(run, name, draw, HIDDEN, train, test=test)
        for name, draw in (("two turns", TWO_TURNS), ("four turns", FOUR_TURNS))
    ]
    fits, lines = {}, {}
    for task in (digits, *spirals):
        epochs = settings.epochs if task is digits else settings.spiral_epochs
        fit = task.fit("Adam", adam(STEP), epochs * task.per_epoch)
        initial, fresh = task.ensemble(), task.independent()
        fits[task.name] = fit
        lines[task.name] = {
            OWN: line(task, initial, fit.ensemble, settings.points),
            FRESH: line(task, fresh, fit.ensemble, settings.points),
            UNTRAINED: line(task, initial, fresh, settings.points),
        }
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    table(run, {f"{task}, {name}": one for task, by_name in lines.items() for name, one in by_name.items()})
    draw_lines(run, "lines", lines, "Test loss along lines between weights: mean over runs and single runs.")
    run.note(
        f"As in 6.1.10.1: two layers of 50 nodes, Adam with h = {STEP:g}, batches of 128 digits and of 500 points "
        f"({train:,} to train, {test:,} to test). Not in the thesis, and chosen here: how long it trains, "
        "and the spirals' turns, two and four as in earlier chapters."
    )
    return [
        mostly_none("MNIST: no barrier from the initial weights", "monotone (blue)", lines[digits.name][OWN]),
        mostly_none("MNIST: no barrier from fresh weights", "monotone (green)", lines[digits.name][FRESH]),
        *(claim for task in spirals for claim in _about_spirals(task.name, lines[task.name])),
    ]


def _about_spirals(name: str, lines: dict[str, Line]) -> list[Claim]:
    from_initial, fresh = lines[OWN], lines[FRESH]
    top, initial = from_initial.values.max(1), from_initial.values[:, 0]
    return [
        mostly_barrier(f"spiral, {name}: a barrier from the initial weights", "barriers appear", from_initial),
        greater(
            f"spiral, {name}: the barrier rises above the initial loss", "above it", top, initial, 0.01, by="median"
        ),
        greater(
            f"spiral, {name}: higher from fresh weights",
            "even higher",
            fresh.heights(),
            from_initial.heights(),
            by="median",
        ),
    ]
