"""Thesis Fig. 6.21: images of types A and C as the networks' test accuracy grows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, best, greater
from ..run import Array, Run
from ..setups.people.seed_ensembles import SCALES, seed_ensembles
from ..setups.people.study import percent

Shares = dict[str, dict[float, Array]]  # kind of network → test accuracy → (repetitions,) percent


@experiment(
    "fig6.21",
    title="Types of images by test accuracy of one network",
    source="thesis Fig. 6.21",
    says="Ten networks that differ in their seeds alone: for MLP, CNN and ViT the images on which only networks "
    "disagree (type A) become fewer as test accuracy grows, and those on which only people disagree (type C) more. At "
    "equal test accuracy the MLP has the fewest images of type A and the most of type C.",
    data=("mnist",),
    **SCALES,
)
def fig6_21(run: Run, settings: SimpleNamespace) -> list[Claim]:
    inputs, ensembles = seed_ensembles(run, settings)
    shares: dict[str, Shares] = {"A": {}, "C": {}}
    for kind, ensemble in ensembles.items():
        for letter, by_kind in shares.items():
            by_kind[kind] = {
                target: np.array([100 * one.share(letter) for one in ensemble.agreements(number, inputs.people)])
                for number, target in enumerate(ensemble.targets)
            }
    for letter, by_kind in shares.items():
        rows = [
            [f"{kind}, {percent(target)}", f"{values.mean():.1f} ± {values.std():.1f}"]
            for kind, by_target in by_kind.items()
            for target, values in by_target.items()
        ]
        run.table(f"Images of type {letter}, %; ± over repetitions", ["network, test accuracy", "% of images"], rows)
    _draw(run, shares)
    if max(settings.more_targets["CNN"], default=0.0) < 0.995:
        run.note(f"The thesis follows the CNN to 99.5 %, here to {percent(settings.more_targets['CNN'][-1])}.")
    low, high = settings.targets[0], settings.targets[-1]
    claims = []
    for kind in ensembles:
        a, c = shares["A"][kind], shares["C"][kind]
        between = f"{kind}, {percent(low)} → {percent(high)}"
        claims.append(greater(f"{between}: type A falls", "falls", a[low], a[high]))
        claims.append(greater(f"{between}: type C rises", "rises", c[high], c[low]))
    top = percent(high)
    least, most = ({kind: by_kind[high] for kind, by_kind in shares[letter].items()} for letter in "AC")
    claims.append(best(f"{top}: the MLP has the fewest of type A", "lowest of three", least, "MLP", lowest=True))
    claims.append(best(f"{top}: the MLP has the most of type C", "largest of three", most, "MLP"))
    return claims


def _draw(run: Run, shares: dict[str, Shares]) -> None:
    caption = "Images of types A (left) and C (right) by test accuracy: mean and deviation over repetitions."
    with run.figure("types", caption, ncols=2, figsize=(9, 3.8)) as axes:
        for panel, (letter, by_kind) in zip(axes[0], shares.items(), strict=True):
            for kind, by_target in by_kind.items():
                x = [100 * target for target in by_target]
                mean, deviation = ([f(values) for values in by_target.values()] for f in (np.mean, np.std))
                panel.errorbar(x, mean, deviation, fmt="o-", capsize=3, label=kind)
            panel.set(xlabel="test accuracy, %", ylabel=f"type {letter}, % of images", ylim=(0, None))
            panel.legend(frameon=False)
