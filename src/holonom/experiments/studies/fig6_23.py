"""Thesis Fig. 6.23: on which images people disagree, and on which ten CNNs that differ in their seeds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from ...metrics import Agreement
from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Run
from ..setups.people.gan_images import POINTS
from ..setups.people.seed_ensembles import SCALES, seed_ensembles
from ..setups.people.study import percent

KIND = "CNN"
COLOURS = {"both agree": "#bbbbbb", "people alone disagree": "#c44e52", "networks alone disagree": "#4c72b0",
           "both disagree": "#ffffff"}  # fmt: skip


@experiment(
    "fig6.23",
    title="On which images networks disagree, and on which people",
    source="thesis Fig. 6.23",
    says="Ten CNNs of equal test accuracy, which differ in their seeds, disagree on other images than ten people: many "
    "images on which one side alone is split.",
    data=("mnist",),
    **SCALES,
)
def fig6_23(run: Run, settings: SimpleNamespace) -> list[Claim]:
    inputs, ensembles = seed_ensembles(run, settings)
    ensemble = ensembles[KIND]
    number = list(ensemble.targets).index(settings.targets[-1])
    found = ensemble.agreements(number, inputs.people)
    top = percent(settings.targets[-1])
    shares = {name: np.array([float(of[name].mean()) for of in map(kinds, found)]) * 100 for name in COLOURS}
    rows = [[name, f"{values.mean():.1f} ± {values.std():.1f}"] for name, values in shares.items()]
    run.table(f"Images, %, ten {KIND}s at {top} test accuracy; ± over repetitions", ["who", "% of images"], rows)
    picture(run, found[0])
    run.note("The picture is of the first repetition; the thesis does not say at which test accuracy its CNNs are.")
    alone = shares["people alone disagree"] + shares["networks alone disagree"]
    name = f"{top}: one side alone disagrees on more images than both do, %"
    return [greater(name, "a significant number (figure)", alone, shares["both disagree"])]


def kinds(one: Agreement) -> dict[str, Array]:
    """(images,) of each kind."""
    networks, people = one.agree.numpy(), one.references_agree.numpy()
    return {
        "both agree": networks & people,
        "people alone disagree": networks & ~people,
        "networks alone disagree": ~networks & people,
        "both disagree": ~networks & ~people,
    }


def picture(run: Run, one: Agreement) -> None:
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    code = torch.zeros(len(one.agree))
    for number, flags in enumerate(kinds(one).values()):
        code[torch.from_numpy(flags)] = number
    columns = POINTS if len(code) % POINTS == 0 else len(code)
    sheet = code.reshape(-1, columns)
    caption = "Every image, a pair of digits in each row as in Fig. 6.22, by who disagrees on it."
    with run.figure("who", caption, figsize=(0.4 * columns + 3, 0.4 * len(sheet) + 0.6)) as axes:
        panel = axes[0, 0]
        colours = ListedColormap(list(COLOURS.values()))
        panel.pcolormesh(
            sheet.numpy()[::-1], cmap=colours, norm=BoundaryNorm(np.arange(5) - 0.5, 4), edgecolors="#888888"
        )
        panel.set(xticks=[], yticks=[], aspect="equal")
        handles = [Patch(facecolor=colour, edgecolor="#888888", label=name) for name, colour in COLOURS.items()]
        panel.legend(handles=handles, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
