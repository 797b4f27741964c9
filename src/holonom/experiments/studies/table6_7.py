"""Thesis Table 6.7: do networks disagree on the same images as people?"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater, near
from ..run import Run
from ..setups.people.study import SCALES, percent, study

PUBLISHED = {"97.5 %": (28.5, 15.2, 6.1), "98 %": (21.8, 11.5, 9.1), "98.5 %": (18.2, 7.3, 8.5)}


@experiment(
    "table6.7",
    title="Networks disagree on other images than people",
    source="thesis Table 6.7",
    says="Two people disagree on 9.3 ± 2.2 % of the images, as often as two networks. But nine networks and people "
    "disagree on different images: at 97.5, 98 and 98.5 % test accuracy networks alone disagree (type A) on 15.2, 11.5 "
    "and 7.3 %, people alone (type C) on 6.1, 9.1 and 8.5 %; type A falls with test accuracy.",
    data=("mnist",),
    **SCALES,
)
def table6_7(run: Run, settings: SimpleNamespace) -> list[Claim]:
    result = study(run, settings)
    nine = result.over_sets(lambda one: one.disagreement)
    alone = result.over_sets(lambda one: one.share("A"))
    people_alone = result.over_sets(lambda one: one.share("C"))
    together = result.over_sets(lambda one: float((~one.agree & ~one.references_agree).double().mean()))
    pairs = result.over_sets(lambda one: one.pair_disagreement.mean)
    people = 100 * result.agreements(0)[0].reference_pair_disagreement.mean
    rows: list[list[str]] = []
    for target in map(percent, result.targets):
        rows.append([target, *(f"{by_target[target].mean():.1f}" for by_target in (nine, alone, people_alone))])
        if target in PUBLISHED:
            rows.append([f"{target}, published", *(f"{value}" for value in PUBLISHED[target])])
    run.table("% of images", ["test accuracy", "networks disagree", "type A", "type C"], rows)
    _draw(run, {"type A": alone, "type C": people_alone})
    targets = [percent(target) for target in result.targets]
    low, high = targets[0], targets[-1]
    published = ("21.3 against 13.3", "20.6 against 10.3", "15.8 against 10.9")
    return [
        *(
            greater(
                f"{target}: one side alone disagrees on more images than both do", said,
                alone[target] + people_alone[target], together[target],
            )
            for target, said in zip(targets, published, strict=True)
        ),
        greater(f"{low} → {high}: type A falls", "15.2 to 7.3", alone[low], alone[high]),
        greater(f"{low} → {high}: type C rises", "6.1 to 8.5", people_alone[high], people_alone[low]),
        near(
            f"two {result.who} differ as often as two networks: these less those, %", "9.3 ± 2.2 against 7.4 to 11.3",
            people - np.mean(list(pairs.values()), 0), 0.0, 4.0,
        ),
    ]  # fmt: skip


def _draw(run: Run, shares: dict[str, dict[str, np.ndarray]]) -> None:
    caption = "Images of type A and type C by the networks' test accuracy: mean over sets, and sets."
    with run.figure("types", caption, figsize=(5.5, 4)) as axes:
        panel = axes[0, 0]
        for kind, by_target in shares.items():
            (line,) = panel.plot(list(by_target), [values.mean() for values in by_target.values()], "o-", label=kind)
            for target, values in by_target.items():
                panel.plot([target] * len(values), values, ".", color=line.get_color(), alpha=0.4)
        panel.set(xlabel="test accuracy", ylabel="% of images", ylim=(0, None))
        panel.legend(frameon=False)
