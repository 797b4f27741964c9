"""Thesis Table 6.8: how sure networks are of images on which they, or people, disagree."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ...metrics import max_softmax
from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Run
from ..setups.people.study import SCALES, percent, study

PUBLISHED = {
    "models disagree, references agree": ("0.83 ± 0.178", "0.85 ± 0.172", "0.83 ± 0.187"),
    "models disagree, references disagree": ("0.87 ± 0.149", "0.86 ± 0.152", "0.89 ± 0.138"),
    "models agree, references agree": ("0.99 ± 0.050", "0.99 ± 0.051", "0.99 ± 0.038"),
    "models agree, references disagree": ("0.97 ± 0.067", "0.96 ± 0.091", "0.97 ± 0.082"),
}
A, BOTH, _, C = PUBLISHED


@experiment(
    "table6.8",
    title="Largest softmax value by type of image",
    source="thesis Table 6.8",
    says="The largest softmax value is much lower where only networks disagree (type A: 0.83, 0.85, 0.83 at 97.5, 98 "
    "and 98.5 % test accuracy) than where only people do (type C: 0.97, 0.96, 0.97), and where both disagree (0.87, "
    "0.86, 0.89) it is higher than in type A.",
    data=("mnist",),
    **SCALES,
)
def table6_8(run: Run, settings: SimpleNamespace) -> list[Claim]:
    result = study(run, settings)
    targets = [percent(target) for target in result.targets]
    means: dict[str, list[Array]] = {name: [] for name in PUBLISHED}
    rows: dict[str, list[str]] = {name: [] for name in PUBLISHED}
    for number in range(len(targets)):
        sets = zip(result.probabilities[number], result.agreements(number), strict=True)
        spreads = [max_softmax(probabilities, one) for probabilities, one in sets]
        for name in PUBLISHED:
            mean = np.array([one[name].mean for one in spreads])
            deviation = np.array([one[name].std for one in spreads])
            good = np.isfinite(mean)
            means[name].append(mean)
            rows[name].append(f"{mean[good].mean():.2f} ± {deviation[good].mean():.3f}" if good.any() else "no images")
    published_targets = result.targets == (0.975, 0.98, 0.985)
    table = [[name.replace("references", result.who), *rows[name]] for name in rows]
    if published_targets:
        table += [[f"{name.replace('references', 'people')}, published", *PUBLISHED[name]] for name in rows]
    run.table("Largest softmax value; ± over images and models, mean over sets", ["images", *targets], table)
    surer_of_c = ("0.97 against 0.83", "0.96 against 0.85", "0.97 against 0.83")
    surer_of_both = ("0.87 against 0.83", "0.86 against 0.85", "0.89 against 0.83")
    claims = []
    for name, wording, published in (
        (C, "surer of type C than of type A", surer_of_c),
        (BOTH, f"surer where {result.who} disagree too than of type A", surer_of_both),
    ):
        for target, said, larger, smaller in zip(targets, published, means[name], means[A], strict=True):
            claims.append(_greater(f"{target}: {wording}", said, larger, smaller))
    return claims


def _greater(name: str, published: str, larger: Array, smaller: Array) -> Claim:
    """Over the sets that have images of both kinds."""
    both = np.isfinite(larger) & np.isfinite(smaller)
    note = "" if both.any() else "no set has images of both kinds"
    return greater(name, published, larger[both], smaller[both], note=note)
