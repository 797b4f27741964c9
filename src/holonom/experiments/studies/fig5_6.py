"""Thesis Fig. 5.6: a transformer fine-tuned on SST-2 in half the time."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim
from ..run import Run
from ..setups.transfer.comparison import OURS, OURS_LAST, arms_at_best_rates, compare
from ..setups.transfer.report import report, usual_claims
from ..setups.transfer.text import CI, DATA, LARGE, PAPER, SMOKE, note, transfer


@experiment(
    "fig5.6",
    title="Fine-tuning a transformer in half the time",
    source="thesis Fig. 5.6",
    says="A pre-trained DistilBERT fine-tuned on SST-2 (k = 5, μ = 0.9, batches of 16, 10 runs): multirate training "
    "keeps the accuracy of full fine-tuning (89.43 % with a fast head, 89.70 % with the last block fast too) in about "
    "half the time.",
    data=DATA,
    smoke=SMOKE,
    ci=CI,
    large=LARGE,
    paper=PAPER,
)
def fig5_6(run: Run, settings: SimpleNamespace) -> list[Claim]:
    reviews, arms = arms_at_best_rates(run, transfer(run, settings), settings)
    outcomes = compare(run, reviews, arms, settings)
    report(run, outcomes, {OURS: "89.43", OURS_LAST: "89.70"})
    note(run, reviews.task, settings)
    return usual_claims(outcomes, "about half (figure)")
