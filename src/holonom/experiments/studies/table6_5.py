"""Thesis Table 6.5: types of images by whether networks and people agree on them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater, near
from ..run import Run
from ..setups.people.study import SCALES, percent, study


@experiment(
    "table6.5",
    title="Types of images between digits",
    source="thesis Table 6.5, Fig. 6.22",
    says="165 images between digits fall into four cells: networks agree or not, people agree or not. Where people "
    "agree and networks do not, networks misclassify (type A); where neither or both agree they match (B), unless both "
    "agree on different labels; where networks alone agree (C) it is unclear what they should do. Ten people disagree "
    "on 19.4 % of the images.",
    data=("mnist",),
    **SCALES,
)
def table6_5(run: Run, settings: SimpleNamespace) -> list[Claim]:
    result = study(run, settings)
    kinds = {kind: result.over_sets(lambda one, kind=kind: one.share(kind)) for kind in ("A", "B", "C", "wrong")}
    cells = {
        name.replace("references", result.who): result.over_sets(
            lambda one, name=name: float(one.cells()[name].double().mean())
        )
        for name in result.agreements(0)[0].cells()
    }
    for title, shares in (("Cells", cells), ("Types", kinds)):
        rows = [
            [name, *(f"{values.mean():.1f}" for values in by_target.values())] for name, by_target in shares.items()
        ]
        run.table(f"{title}, % of images by test accuracy", [title.lower(), *map(percent, result.targets)], rows)
    run.note(
        '"wrong": networks agree and people agree, on different labels (the thesis counts these as misclassified).'
    )
    top = percent(result.targets[-1])
    disagree = 100 * (result.people != result.people[0]).any(0).double().numpy()
    return [
        greater(f"most images are of type B at {top}", "84 against 50", kinds["B"][top], np.full(run.replicas, 50.0)),
        near(
            f"{result.who} disagree on, % of the images",
            "19.4 %",
            disagree,
            19.4,
            5.0,
            of="image",
            note=f"one group of {len(result.people)}, interval over images",
        ),
    ]
