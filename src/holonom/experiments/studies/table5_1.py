"""Thesis Table 5.1: slow parameters that drift against slow parameters that move at once."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.transfer.comparison import OURS, compare, tuned
from ..setups.transfer.finetuning import Arm
from ..setups.transfer.report import report
from ..setups.transfer.text import CI, DATA, LARGE, PAPER, SMOKE, note, transfer

PUBLISHED = {"fc, drift": "89.43", "fc, no drift": "88.69", "last + fc, drift": "89.70", "last + fc, no drift": "89.54"}


@experiment(
    "table5.1",
    title="Linear drift of the slow parameters",
    source="thesis Table 5.1",
    says="Fine-tuning DistilBERT on SST-2, moving slow parameters along a line (Algorithm 5.1) gives a higher mean "
    "test accuracy than moving them once (Algorithm 5.2): 89.43 against 88.69 % with fast fc, 89.70 against 89.54 % "
    "with fast last block + fc.",
    data=DATA,
    smoke=SMOKE,
    ci=CI,
    large=LARGE,
    paper=PAPER,
)
def table5_1(run: Run, settings: SimpleNamespace) -> list[Claim]:
    reviews = tuned(run, transfer(run, settings), settings, OURS)
    parts = {"fc": (reviews.task.head,), "last + fc": (reviews.task.last, reviews.task.head)}
    arms = {
        f"{name}, {'drift' if drift else 'no drift'}": Arm(fast, drift=drift)
        for name, fast in parts.items()
        for drift in (True, False)
    }
    outcomes = compare(run, reviews, arms, settings)
    report(run, outcomes, PUBLISHED)
    note(run, reviews.task, settings)
    return [
        greater(
            f"drift helps, fast {name}", f"{PUBLISHED[f'{name}, drift']} against {PUBLISHED[f'{name}, no drift']} %",
            outcomes[f"{name}, drift"].final, outcomes[f"{name}, no drift"].final,
        )
        for name in parts
    ]  # fmt: skip
