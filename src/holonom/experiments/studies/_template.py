"""Template of a study: copy it to ``<id>.py`` and change the id. Names with a leading underscore are not discovered.

Here: where the figure or table is, and what it shows, in one sentence.
"""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.planar.methods import adam, sgd
from ..setups.planar.problem import TWO_TURNS, problem
from ..setups.shared.curves import HEADINGS


@experiment(
    "template",
    title="Adam against SGD on the two-turn spiral",
    source="where it was published",
    says="The published statement, in our words.",
    data=(),  # names of data sets, as `holonom data list` shows them
    smoke={"replicas": 2, "steps": 4},
    ci={"replicas": 4, "steps": 2000},
    paper={"replicas": 20, "steps": 20_000},
)
def template(run: Run, settings: SimpleNamespace) -> list[Claim]:
    task = problem(run, TWO_TURNS, train=100, test=100, hidden=10)
    fits = {name: task.fit(name, make, settings.steps) for name, make in METHODS.items()}
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    run.curves(fits, "test_accuracy", "test accuracy", "Test accuracy: mean and 10–90 % band over runs.")
    run.note("What the publication leaves open, and what was chosen here.")
    accuracy = {name: fit.final("test_accuracy") for name, fit in fits.items()}
    return [greater("Adam is more accurate than SGD", "published number", accuracy["Adam"], accuracy["SGD"])]


METHODS = {"SGD": sgd(0.1), "Adam": adam(0.005)}
