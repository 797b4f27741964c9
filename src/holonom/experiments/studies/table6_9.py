"""Thesis Table 6.9: how certain networks are of images of which people are not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from ...metrics import certainty, certainty_by_reference
from ..base import experiment
from ..claims import Claim, best, greater
from ..run import Array, Run
from ..setups.people.seed_ensembles import SCALES, seed_ensembles
from ..setups.people.study import percent

DOUBTFUL = 0.8  # certainty of people


@experiment(
    "table6.9",
    title="Certainty of networks and of people",
    source="thesis Table 6.9",
    says="The certainty of ten networks that differ in their seeds (the share that gives the most frequent label) is "
    "79 to 99 % on images of which people are 90 to 50 % certain, with no clear relation between the two. CNNs are the "
    "least certain of images of which people are at most 80 % certain, but still far more so than people.",
    data=("mnist",),
    **SCALES,
)
def table6_9(run: Run, settings: SimpleNamespace) -> list[Claim]:
    inputs, ensembles = seed_ensembles(run, settings)
    people = certainty(inputs.people)
    levels = [float(level) for level in torch.unique(people).flip(0)]
    rows = []
    for number, target in enumerate(settings.targets):
        for kind, ensemble in ensembles.items():
            repetitions = [certainty_by_reference(labels, inputs.people) for labels in ensemble.predictions(number)]
            cells = [100 * np.array([one[level].mean for one in repetitions]) for level in levels]
            rows.append([percent(target), kind, *(f"{cell.mean():.1f} ± {cell.std():.1f}" for cell in cells)])
    counts = [int((people == level).sum()) for level in levels]
    columns = [f"{100 * level:.0f} % ({count})" for level, count in zip(levels, counts, strict=True)]
    run.table(
        f"Certainty of networks, %, where {inputs.who} are so certain (number of images)",
        ["test accuracy", "network", *columns],
        rows,
    )
    doubtful = people <= DOUBTFUL + 1e-9
    certainties = {
        kind: _certainties(ensemble.predictions(len(settings.targets) - 1)[..., doubtful])
        for kind, ensemble in ensembles.items()
    }
    theirs = np.full(run.replicas, float(people[doubtful].mean()))
    top = percent(settings.targets[-1])
    return [
        *(
            greater(
                f"{top}: {kind}s are more certain than {inputs.who} where these doubt", "much higher", values, theirs
            )
            for kind, values in certainties.items()
        ),
        best(f"{top}: CNNs are the least certain there", "lowest overall certainty", certainties, "CNN", lowest=True),
    ]


def _certainties(predictions: torch.Tensor) -> Array:
    """(repetitions,) mean over images; NaN without any."""
    if not predictions.shape[-1]:
        return np.full(len(predictions), np.nan)
    return np.array([float(certainty(labels).mean()) for labels in predictions])
