"""Thesis Table 5.3: the effect of k."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.transfer.comparison import OURS, compare, tuned
from ..setups.transfer.finetuning import Arm
from ..setups.transfer.report import report, shorter
from ..setups.transfer.text import CI, DATA, LARGE, PAPER, SMOKE, note, transfer

PUBLISHED = {
    "fc, k = 3": "89.26", "fc, k = 5": "89.43", "fc, k = 10": "88.53",
    "last + fc, k = 3": "88.91", "last + fc, k = 5": "89.70", "last + fc, k = 10": "88.65",
}  # fmt: skip
PERIODS = (3, 5, 10)
SECONDS = {3: 245, 5: 198, 10: 180}  # published, fast fc


@experiment(
    "table5.3",
    title="The effect of the period k",
    source="thesis Table 5.3",
    says="Fine-tuning DistilBERT on SST-2 takes 245, 198 and 180 s with k = 3, 5 and 10 and fast fc (264, 224 and 207 "
    "s with fast last block + fc); k = 5 has the best accuracy, 89.43 % (89.70 %).",
    data=DATA,
    smoke=SMOKE,
    ci=CI,
    large=LARGE,
    paper=PAPER,
)
def table5_3(run: Run, settings: SimpleNamespace) -> list[Claim]:
    reviews = tuned(run, transfer(run, settings), settings, OURS)
    parts = {"fc": (reviews.task.head,), "last + fc": (reviews.task.last, reviews.task.head)}
    arms = {f"{name}, k = {k}": Arm(fast, k) for name, fast in parts.items() for k in PERIODS}
    outcomes = compare(run, reviews, arms, settings)
    report(run, outcomes, PUBLISHED)
    note(run, reviews.task, settings)
    ratios = {k: outcomes[f"fc, k = {k}"].ratios for k in PERIODS}
    return [
        shorter("k = 5 and a fast head: at most 0.55 of the time", "198 s; full unsaid", ratios[5], 0.55),
        *(
            shorter(
                f"k = {long} takes less time than k = {short}", f"{SECONDS[long] / SECONDS[short]:.2f} of it",
                ratios[long] / ratios[short], 1.0,
            )
            for short, long in pairwise(PERIODS)
        ),
        *(
            greater(
                f"k = 5 beats k = {other}, fast {name}",
                f"{PUBLISHED[f'{name}, k = 5']} against {PUBLISHED[f'{name}, k = {other}']} %",
                outcomes[f"{name}, k = 5"].final, outcomes[f"{name}, k = {other}"].final,
            )
            for name in parts
            for other in (3, 10)
        ),
    ]  # fmt: skip
