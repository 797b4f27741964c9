"""Thesis Table 6.1: the effect of interventions on the shape of the line and on the accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, greater, most
from ..run import Array, Run
from ..setups.cifar.recipes import Start
from ..setups.cifar.study import (
    BLOCKS,
    CI,
    LARGE,
    PAPER,
    SMOKE,
    STAGES,
    Arm,
    Study,
    barrier_blocks,
    barrier_note,
    mean_profile,
)
from ..setups.shared.loss_lines import draw
from .fig6_2B import memorised
from .fig6_3 import from_top
from .fig6_4 import PUBLISHED as FORGOTTEN
from .fig6_4 import forgetful
from .fig6_7 import LITTLE, MUCH, SOME, decayed
from .fig6_8 import fixed
from .fig6_10 import DEPTHS
from .fig6_19 import PLAIN, vgg

LETTERS = {"barrier": "B", "no barrier": "NB", "plateau": "P", "diverged": "–"}


@dataclass(frozen=True)
class Row:
    """An intervention: its effect on shape and accuracy in the thesis, its arms, and their reference."""

    name: str
    shape: str
    accuracy: str
    arms: tuple[Arm, ...]
    reference: Arm
    note: str = ""

    def shapes(self) -> str:
        """Measured shapes, in the table's letters."""
        words = " / ".join(dict.fromkeys(LETTERS[mean_profile(arm.whole)] for arm in self.arms))
        if not self.blockwise:
            return words
        rise = self.highest() - self.reference.highest()
        return f"{words}, {'H' if rise.mean() > 0 else 'L'}-LB ({rise.mean():+.2g})"

    @property
    def blockwise(self) -> bool:
        return bool(self.reference.blocks) and all(arm.blocks for arm in self.arms)

    def highest(self) -> Array:
        """(runs,) the blocks' highest barrier, mean over the arms."""
        mean: Array = np.mean([arm.highest() for arm in self.arms], 0)
        return mean

    def accuracies(self) -> Array:
        """(runs,) test accuracy in per cent, mean over the arms."""
        mean: Array = np.mean([arm.accuracy for arm in self.arms], 0)
        return mean

    def gain(self) -> float:
        """In accuracy over the reference."""
        return float((self.accuracies() - self.reference.accuracy).mean())

    def claims(self) -> list[Claim]:
        pair = [self.accuracies(), self.reference.accuracy]
        higher, lower = pair if self.accuracy == "better" else reversed(pair)
        name = f"{self.name}: accuracy is {self.accuracy}, %"
        accuracy_claim = greater(name, self.accuracy, higher, lower, note=self.note)
        return [SHAPES[self.shape](self), accuracy_claim]


def _mostly(*words: str) -> Callable[[Row], Claim]:
    def claim(row: Row) -> Claim:
        share = np.mean([arm.whole.are(*words) for arm in row.arms], 0)
        flags = np.where(np.isfinite(share), share > 0.5, np.nan)
        return most(f"{row.name}: {' or '.join(words)} for most", row.shape, flags)

    return claim


def _varied(row: Row) -> Claim:
    """Run by run."""
    shapes = np.stack([arm.whole.are("barrier") + 2 * arm.whole.are("plateau") for arm in row.arms])
    flags = np.where(np.isfinite(shapes).all(0), shapes.min(0) < shapes.max(0), np.nan)
    return most(f"{row.name}: more than one shape for most", row.shape, flags)


def _higher(row: Row) -> Claim:
    return greater(
        f"{row.name}: higher barriers of blocks", row.shape, row.highest(), row.reference.highest(), by="median"
    )


def _lower(row: Row) -> Claim:
    return greater(
        f"{row.name}: lower barriers of blocks", row.shape, row.reference.highest(), row.highest(), by="median"
    )


SHAPES: dict[str, Callable[[Row], Claim]] = {
    "NB": _mostly("no barrier"),
    "NB / B": _mostly("no barrier", "barrier"),
    "P": _mostly("plateau"),
    "B / NB / P": _varied,
    "H-LB": _higher,
    "L-LB": _lower,
    "NB / L-LB": _lower,
    "NB (blocks)": _lower,
}


@experiment(
    "table6.1",
    title="Interventions on CIFAR-10: the shape of the line, and the accuracy",
    source="thesis Table 6.1",
    says="Interventions in initialisation, data, optimizer and model change the shape of the line from initial to "
    "trained weights (barrier B, none NB, plateau P, higher or lower barriers of blocks H-LB, L-LB) and the test "
    "accuracy, but the shape does not tell whether the accuracy is better or worse.",
    data=("cifar-10",),
    smoke={**SMOKE, "random_epochs": 1, "plain_step": 0.01, "share": 0.5},
    ci={**CI, "train": 600, "epochs": 2, "random_epochs": 4, "plain_step": 0.01, "share": 0.1},
    large={**LARGE, "random_epochs": 60, "plain_step": 0.01, "share": 0.1},
    paper={**PAPER, "random_epochs": 200, "plain_step": 0.01, "share": 0.1},
)
def table6_1(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    base = study.arm("base", blocks=BLOCKS)
    high, found = barrier_blocks(base)
    parts = {
        "initial state": _initialisation(study, base),
        "data": _data(study, base),
        "optimizer": _optimizer(study, base, tuple(str(BLOCKS[name]) for name in high)),
        "model": _model(study),
    }
    rows = [row for part in parts.values() for row in part]
    arms = {arm.arm: arm for row in rows for arm in (row.reference, *row.arms)}
    run.table(
        "Interventions",
        ["intervention", "shape, published", "shape, here", "accuracy, published", "here, %", "compared with"],
        [
            [row.name, row.shape, row.shapes(), row.accuracy, f"{row.gain():+.2f}",
             f"{row.reference.arm} ({row.reference.accuracy.mean():.2f} %)"]
            for row in rows
        ],
    )  # fmt: skip
    study.report(
        arms,
        barrier_note(high, found),
        "Left out: pre-training on ImageNet (Fig. 6.2A), single blocks pre-trained on random labels (fig6.5), and "
        "the perceptrons, which fig6.17 is about. Random labels and the barrier's top are compared with training "
        "without weight decay, a fixed h = 0.01 with the better of the other fixed steps, no batch norm with VGG-11, "
        "all else with the base; “NB (blocks)” stands for the thesis's NB where it speaks of the blocks.",
    )
    for part, group in parts.items():
        panels = {row.name: {arm.arm: arm.whole for arm in (row.reference, *row.arms)} for row in group}
        draw(
            run, part.replace(" ", "-"), panels, f"Test loss on the line of the whole network: the role of the {part}."
        )
    return [claim for row in rows for claim in row.claims()]


def _initialisation(study: Study, base: Arm) -> list[Row]:
    bare = study.arm("no weight decay", blocks=BLOCKS, weight_decay=0.0)
    first = memorised(study, study.settings.random_epochs)
    fooled = study.arm("from random labels", bare.recipe, blocks=BLOCKS, start=Start(first))
    forgotten = tuple(forgetful(study, block) for block in FORGOTTEN)
    return [
        Row("pre-train on random labels", "H-LB", "worse", (fooled,), bare),
        Row("start at the top of the barrier", "NB", "better", (from_top(study, bare),), bare),
        Row("partial training", "B / NB / P", "often worse", forgotten, base),
    ]


def _data(study: Study, base: Arm) -> list[Row]:
    few = round(study.settings.share * len(study.data))
    less = study.arm(f"{few:,} images", blocks=BLOCKS, images=few)
    plain = study.arm("no augmentation", blocks=BLOCKS, augmented=False)
    return [
        Row("less data", "NB / L-LB", "worse", (less,), base),
        Row("no data augmentation", "L-LB", "worse", (plain,), base),
    ]


def _optimizer(study: Study, base: Arm, high: tuple[str, ...]) -> list[Row]:
    less = tuple(study.arm(decayed(decay), weight_decay=decay) for decay in (*LITTLE, SOME))
    more = study.arm(decayed(MUCH), weight_decay=MUCH)
    large, middle, small = (fixed(study, step) for step in (0.1, 0.01, 0.001))
    rival = max((large, small), key=lambda arm: float(np.nan_to_num(arm.accuracy).mean()))
    careful = study.arm("0.01 with barriers", blocks=BLOCKS, special_blocks=high, special_step=0.01)
    return [
        Row("less weight decay", "NB / B", "worse", less, base),
        Row("more weight decay", "P", "worse", (more,), base),
        Row("fixed h = 0.01", "P", "better", (middle,), rival, "rival chosen by test accuracy"),
        Row("fixed h ≠ 0.01", "NB", "worse", (large, small), base),
        Row("smaller initial h for blocks with barriers", "NB (blocks)", "worse", (careful,), base),
    ]


def _model(study: Study) -> list[Row]:
    shallow, *deep = (study.arm(name, blocks=STAGES, architecture=kind) for name, kind in DEPTHS.items())
    normed, plain = vgg(study), vgg(study, "VGG-11 without norm", PLAIN, study.settings.plain_step)
    return [
        Row("depth", "H-LB", "better", tuple(deep), shallow),
        Row("no batch normalisation", "NB", "worse", (plain,), normed),
    ]
