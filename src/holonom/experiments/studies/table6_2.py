"""Thesis Table 6.2: steps and weight decay by whether a layer has a barrier."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.cifar.network_lines import Blocks
from ..setups.cifar.study import (
    BLOCKS,
    CI,
    LARGE,
    PAPER,
    PUBLISHED_BARRIERS,
    SMOKE,
    Arm,
    Study,
    as_published,
    barrier_blocks,
    barrier_note,
    patterns_of,
    vgg_layers,
)
from ..setups.shared.loss_lines import draw
from .fig6_19 import WITH_BARRIERS

# Changes for layers with barriers ("special") and for the rest; published accuracies of ResNet-18 and VGG-11.
ROWS: dict[str, tuple[dict[str, Any], tuple[float, float]]] = {
    "0.1 (all)": ({}, (92.2, 91.9)),
    "0.1 (B), 0.01 (NB)": ({"step": 0.01}, (91.8, 92.0)),
    "0.01 (B), 0.1 (NB)": ({"special_step": 0.01}, (90.1, 90.4)),
    "0.01 (all)": ({"step": 0.01, "special_step": 0.01}, (90.3, 90.9)),
    "WD (B), no WD (NB)": ({"weight_decay": 0.0}, (91.5, 91.8)),
    "no WD (B), WD (NB)": ({"special_weight_decay": 0.0}, (90.1, 90.2)),
    "no WD (all)": ({"weight_decay": 0.0, "special_weight_decay": 0.0}, (90.1, 90.4)),
}
NETWORKS = {"ResNet-18": "resnet18", "VGG-11": "vgg11"}


@experiment(
    "table6.2",
    title="Other steps and weight decay for layers with barriers, CIFAR-10",
    source="thesis Table 6.2",
    says="Layers with barriers (B) and without (NB) get different initial steps, 0.1 or 0.01, or weight decay, 5e-4 or "
    "none. Test accuracy is kept much better if the layers with barriers have the larger step (ResNet-18: 91.8 against "
    "90.1 %, VGG-11: 92.0 against 90.4 %) or the weight decay (91.5 against 90.1 %, 91.8 against 90.2 %).",
    data=("cifar-10",),
    smoke=SMOKE,
    ci={**CI, "train": 1000, "epochs": 2},
    large=LARGE,
    paper=PAPER,
)
def table6_2(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    arms: dict[str, Arm] = {}
    claims, notes = [], []
    for column, (network, architecture) in enumerate(NETWORKS.items()):
        recipe = replace(study.base, architecture=architecture)
        published = PUBLISHED_BARRIERS if column == 0 else WITH_BARRIERS
        blocks = BLOCKS if column == 0 else vgg_layers(recipe)
        base = study.arm(f"{network}, {next(iter(ROWS))}", recipe, blocks=blocks)
        high, found = barrier_blocks(base, published)
        notes.append(barrier_note(high, found, network))
        rows = {row: base if not changes else _arm(study, f"{network}, {row}", base, blocks, high, changes)
                for row, (changes, _) in ROWS.items()}  # fmt: skip
        arms |= {arm.arm: arm for arm in rows.values()}
        claims += _claims(network, column, rows)
    _table(run, arms)
    study.report(arms, *notes)
    shown = {network: arms[f"{network}, {next(iter(ROWS))}"].lines for network in NETWORKS}
    draw(run, "lines", shown, "Which blocks have barriers: test loss while one of them, or all, move.", yscale="log")
    return claims


def _arm(study: Study, name: str, base: Arm, blocks: Blocks, high: tuple[str, ...], changes: dict[str, Any]) -> Arm:
    """The same network with other options for the blocks that have barriers, or for all."""
    same = {k: v for k, v in changes.items() if not k.startswith("special_")}
    special = {k.removeprefix("special_"): v for k, v in changes.items() if k.startswith("special_")}
    if same == special:
        return study.arm(name, base.recipe, **same)
    return study.arm(name, base.recipe, special_blocks=patterns_of(blocks, high), **changes)


def _table(run: Run, arms: dict[str, Arm]) -> None:
    rows = []
    for row, (_, published) in ROWS.items():
        cells: list[Any] = [row]
        for network, value in zip(NETWORKS, published, strict=True):
            accuracy = arms[f"{network}, {row}"].accuracy
            cells += [value, f"{accuracy.mean():.2f} ({', '.join(f'{x:.2f}' for x in accuracy)})"]
        rows.append(cells)
    columns = [f"{network}, {whose}" for network in NETWORKS for whose in ("published", "here (runs)")]
    run.table("Test accuracy, %", ["initial step or weight decay", *columns], rows)


def _claims(network: str, column: int, rows: dict[str, Arm]) -> list[Claim]:
    accuracy = {row: arm.accuracy for row, arm in rows.items()}

    def against(name: str, better: str, worse: str) -> Claim:
        published = f"{ROWS[better][1][column]} against {ROWS[worse][1][column]}"
        return greater(f"{network}: {name}, %", published, accuracy[better], accuracy[worse])

    return [
        against("the larger step belongs to layers with barriers", "0.1 (B), 0.01 (NB)", "0.01 (B), 0.1 (NB)"),
        against("only there is better than a small step for all", "0.1 (B), 0.01 (NB)", "0.01 (all)"),
        against("weight decay belongs to layers with barriers", "WD (B), no WD (NB)", "no WD (B), WD (NB)"),
        against("only there is better than none", "WD (B), no WD (NB)", "no WD (all)"),
        *(
            claim
            for row, (_, published) in ROWS.items()
            for claim in as_published(
                rows[row], f"{network}: {row}, %", f"{published[column]} %", accuracy[row], published[column], 1.0
            )
        ),
    ]
