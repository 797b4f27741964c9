"""Thesis Table 5.2: a larger step for slow parameters."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.transfer.comparison import OURS, compare, tuned
from ..setups.transfer.finetuning import Arm
from ..setups.transfer.report import report
from ..setups.transfer.text import CI, DATA, LARGE, PAPER, SMOKE, note, transfer

PUBLISHED = {"fc, h_S = k·h_F": "89.43", "fc, h_S = h_F": "88.78", "last + fc, h_S = k·h_F": "89.70",
             "last + fc, h_S = h_F": "89.29"}  # fmt: skip


@experiment(
    "table5.2",
    title="The slow parameters' step: h_S = k·h_F against h_S = h_F",
    source="thesis Table 5.2",
    says="Fine-tuning DistilBERT on SST-2, slow parameters with the larger step h_S = k·h_F do better than with the "
    "fast ones' step: 89.43 against 88.78 % with fast fc, 89.70 against 89.29 % with fast last block + fc.",
    data=DATA,
    smoke=SMOKE,
    ci=CI,
    large=LARGE,
    paper=PAPER,
)
def table5_2(run: Run, settings: SimpleNamespace) -> list[Claim]:
    reviews = tuned(run, transfer(run, settings), settings, OURS)
    parts = {"fc": (reviews.task.head,), "last + fc": (reviews.task.last, reviews.task.head)}
    arms = {
        f"{name}, h_S = {'h_F' if same else 'k·h_F'}": Arm(fast, same_step=same)
        for name, fast in parts.items()
        for same in (False, True)
    }
    outcomes = compare(run, reviews, arms, settings)
    report(run, outcomes, PUBLISHED)
    note(run, reviews.task, settings)
    return [
        greater(
            f"a larger slow step helps, fast {name}",
            f"{PUBLISHED[f'{name}, h_S = k·h_F']} against {PUBLISHED[f'{name}, h_S = h_F']} %",
            outcomes[f"{name}, h_S = k·h_F"].final, outcomes[f"{name}, h_S = h_F"].final,
        )
        for name in parts
    ]  # fmt: skip
