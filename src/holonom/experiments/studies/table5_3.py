"""Thesis Table 5.3: the effect of k."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ..base import experiment
from ..claims import Claim, fact, greater
from ..run import Run
from ..setups.multirate_transfer import compare, tuned
from ..setups.text_transfer import CI, DATA, PAPER, SMOKE, note, transfer
from ..setups.transfer_report import report, shorter
from ..setups.transfer_steps import Arm

PUBLISHED = {
    "fc, k = 3": "89.26", "fc, k = 5": "89.43", "fc, k = 10": "88.53",
    "last + fc, k = 3": "88.91", "last + fc, k = 5": "89.70", "last + fc, k = 10": "88.65",
}  # fmt: skip
PERIODS = (3, 5, 10)


@experiment(
    "table5.3",
    title="The effect of the period k",
    source="thesis Table 5.3",
    says="Fine-tuning DistilBERT on SST-2 takes 245, 198 and 180 s with k = 3, 5 and 10 and fast fc (264, 224 and 207 "
    "s with fast last block + fc); k = 5 has the best accuracy, 89.43 % (89.70 %).",
    data=DATA,
    smoke=SMOKE,
    ci=CI,
    paper=PAPER,
)
def table5_3(run: Run, settings: SimpleNamespace) -> list[Claim]:
    reviews = tuned(run, transfer(run, settings), settings)
    parts = {"fc": (reviews.task.head,), "last + fc": (reviews.task.last, reviews.task.head)}
    arms = {f"{name}, k = {k}": Arm(fast, k) for name, fast in parts.items() for k in PERIODS}
    outcomes = compare(run, reviews, arms, settings)
    report(run, outcomes, PUBLISHED)
    note(run, reviews.task, settings)
    times = [float(np.median(outcomes[f"fc, k = {k}"].ratios)) for k in PERIODS]
    return [
        shorter("k = 5 and a fast head: at most 0.55 of the time", "198 s; full unsaid", outcomes["fc, k = 5"], 0.55),
        fact(
            "a longer period is faster", "245, 198, 180 s", times[-1] / times[0], times[0] > times[1] > times[2],
            detail=f"k = 10 over k = 3 (published {180 / 245:.2f}); over full: {', '.join(f'{t:.2f}' for t in times)}",
        ),
        *(
            greater(
                f"k = 5 beats k = 10, fast {name}",
                f"{PUBLISHED[f'{name}, k = 5']} against {PUBLISHED[f'{name}, k = 10']} %",
                outcomes[f"{name}, k = 5"].final, outcomes[f"{name}, k = 10"].final,
            )
            for name in parts
        ),
    ]  # fmt: skip
