"""Thesis Fig. 3.3: no barrier between first and last weights on MNIST and on a spiral of one turn."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from ...data import spirals
from ..base import experiment
from ..claims import Claim, near
from ..run import Run
from ..setups.perceptrons.tasks import Task, line, on_digits, on_spirals
from ..setups.planar.methods import adam, adlala
from ..setups.shared.curves import HEADINGS
from ..setups.shared.loss_lines import draw, mostly_none, table

HIDDEN = {"MNIST": 100, "one turn": 20}
METHODS = {
    "MNIST": {"AdLaLa": adlala(0.15), "Adam": adam(0.001)},
    "one turn": {"AdLaLa": adlala(0.25, driving_noise=0.01, coupling=0.1, friction=0.5), "Adam": adam(0.005)},
}
SIMILAR = 0.03  # in test loss


@experiment(
    "fig3.3",
    title="No loss barrier on MNIST and the one-turn spiral",
    source="thesis Fig. 3.3",
    says="On the straight line from initial to trained weights there is no evidence of a barrier, neither on MNIST nor "
    "on a spiral of one turn. On MNIST AdLaLa and Adam find different minima from the same start, with similar test "
    "loss.",
    data=("mnist",),
    smoke={"replicas": 2, "steps": 4, "epochs": 1, "train": 300, "test": 100, "points": 11},
    ci={"replicas": 5, "steps": 10_000, "epochs": 3, "train": 20_000, "test": 2000, "points": 51},
    paper={"replicas": 20, "steps": 20_000, "epochs": 20, "train": None, "test": None, "points": 101},
)
def fig3_3(run: Run, settings: SimpleNamespace) -> list[Claim]:
    digits = on_digits(run, (HIDDEN["MNIST"],), settings.train, settings.test)
    one_turn = partial(spirals, turns=1, scale=2.0, noise=0.02)
    spiral = on_spirals(run, "one turn", one_turn, (HIDDEN["one turn"],))
    steps = {"MNIST": settings.epochs * digits.per_epoch, "one turn": settings.steps}
    tasks: list[Task] = [digits, spiral]
    fits = {
        f"{task.name}, {method}": task.fit(method, make, steps[task.name])
        for task in tasks
        for method, make in METHODS[task.name].items()
    }
    lines = {
        task.name: {
            method: line(task, task.ensemble(), fits[f"{task.name}, {method}"].ensemble, settings.points)
            for method in METHODS[task.name]
        }
        for task in tasks
    }
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    table(run, {f"{task}, {method}": one for task, by_method in lines.items() for method, one in by_method.items()})
    draw(run, "lines", lines, "From initial (α = 0) to trained weights (α = 1): mean and runs.")
    run.note(
        "Not in the thesis, and chosen here: 100 hidden nodes, batches of 128 and normalised pixels for MNIST "
        "with AdLaLa at the thesis's general settings (h = 0.15) and Adam at h = 0.001; for the spiral network, "
        "data and settings of Fig. 3.8 with one turn."
    )
    difference = fits["MNIST, AdLaLa"].final("test_loss") - fits["MNIST, Adam"].final("test_loss")
    return [
        *(
            mostly_none(f"{task}: no barrier for {method}", "no evidence of a barrier", one)
            for task, by_method in lines.items()
            for method, one in by_method.items()
        ),
        near("MNIST: AdLaLa's final test loss less Adam's", "similar", difference, 0.0, SIMILAR),
    ]
