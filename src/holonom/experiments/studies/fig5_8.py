"""Thesis Fig. 5.8: random subsets against dropout for a small transformer on Penn Treebank."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from ...data import penn_treebank
from ..base import experiment
from ..claims import Claim, greater
from ..run import Fit, Run
from ..setups.mts.random_subsets import EncodedText, Make, sgd, subsets
from ..setups.shared.language_model import LENGTH, Text, fit, lowest, text

PATTERNS = ("layers.*.attention.*.weight", "layers.*.feedforward.*.weight")
Train = Callable[[str, Text, float, bool], Fit]  # arm, text, probability, whether it is a search


@experiment(
    "fig5.8",
    title="Random slow subsets against dropout on Penn Treebank",
    source="thesis Fig. 5.8",
    says="A transformer with 2 encoder layers (2 heads, 200 nodes) on Penn Treebank, SGD with h = 0.1 and batches of "
    "128: multirate random subsets reach a lower validation loss than SGD and SGD with tuned dropout in the encoder.",
    data=("penn-treebank",),
    smoke={
        "replicas": 2, "epochs": 2, "columns": 4, "width": 8, "most": 400, "grid": (0.1, 0.2), "search_epochs": 1,
        "steps_off": 5, "momentum": 0.9,
    },
    ci={
        "replicas": 3, "epochs": 5, "columns": 8, "width": 32, "most": 5000, "grid": (0.1, 0.2, 0.4),
        "search_epochs": 2, "steps_off": 5, "momentum": 0.9,
    },
    paper={
        "replicas": 3, "epochs": 40, "columns": 128, "width": 200, "most": None, "grid": (0.1, 0.2, 0.4),
        "search_epochs": 10, "steps_off": 5, "momentum": 0.9,
    },
)  # fmt: skip
def fig5_8(run: Run, settings: SimpleNamespace) -> list[Claim]:
    words = text(run, penn_treebank(run.root), settings.columns, settings.width, settings.most)
    plain = sgd(settings.momentum)

    def train(arm: str, words: Text, make: Make, searches: bool = False, dropout: float = 0.0) -> Fit:
        read = EncodedText.of(words, dropout)
        if searches:
            return fit(run, arm, read, make, settings.search_epochs, run.single(read.model))
        return fit(run, arm, read, make, settings.epochs)

    def multirate(arm: str, words: Text, p: float, searches: bool) -> Fit:
        make = subsets(dict.fromkeys(PATTERNS, p), settings.momentum, settings.steps_off)
        return train(arm, words, make, searches)

    def dropout(arm: str, words: Text, p: float, searches: bool) -> Fit:
        return train(arm, words, plain, searches, p)

    kinds: dict[str, Train] = {"multirate": multirate, "dropout": dropout}
    chosen = {kind: search(run, words.held_out(), kind, trained, settings) for kind, trained in kinds.items()}
    arms = {kind: f"{kind} p = {p:g}" for kind, p in chosen.items()}
    fits = {
        "SGD": train("SGD", words, plain),
        "SGD, μ = 0": train("SGD, μ = 0", words, sgd(0.0)),
        **{arm: kinds[kind](arm, words, chosen[kind], False) for kind, arm in arms.items()},
    }
    run.save_curves(fits)
    run.summary(fits, {"valid_loss": "final validation loss"})
    per_epoch = (len(words.train) - 1) // LENGTH
    run.curves(fits, "valid_loss", "validation loss", "Validation loss: mean over runs.", per_epoch)
    run.note(
        f"Not in the thesis and chosen here: which weights rest (those of attention and feed-forward layers), "
        f"k = {settings.steps_off}, word vectors of width {settings.width}, windows of {LENGTH} words, "
        f"{settings.epochs} epochs. μ = {settings.momentum:g}, as section 5.9.3 has it where a caption says nothing "
        "else; SGD without momentum is shown beside. The probability is chosen for subsets and for dropout apart, by "
        f"the loss on the last tenth of each column of the training text, the rest being trained on for "
        f"{settings.search_epochs} epochs by one run that is none of those compared. Losses are the smallest met in "
        "training, of every arm alike."
    )
    smallest = {name: lowest(one) for name, one in fits.items()}
    ours = smallest[arms["multirate"]]
    return [
        greater("multirate subsets beat SGD", "lower loss (figure)", smallest["SGD"], ours, diverged=math.inf),
        greater(
            "multirate subsets beat tuned dropout", "lower loss (figure)", smallest[arms["dropout"]], ours,
            diverged=math.inf,
        ),
    ]  # fmt: skip


def search(run: Run, words: Text, kind: str, trained: Train, settings: SimpleNamespace) -> float:
    """The probability of ``grid`` with the smallest loss on held-out training text."""
    losses = [lowest(trained(f"search, {kind} p = {p:g}", words, p, True)) for p in settings.grid]
    scores = [float(np.mean(values)) for values in losses]
    run.table(
        f"Loss on held-out training text after {settings.search_epochs} epoch(s): {kind}",
        ["p", "loss"],
        [[f"{p:g}", f"{score:.3f}"] for p, score in zip(settings.grid, scores, strict=True)],
    )
    best = float(settings.grid[int(np.argmin(np.nan_to_num(scores, nan=np.inf)))])
    if best in (min(settings.grid), max(settings.grid)):
        run.note(f"The best p of {kind}, {best:g}, lies at the edge of those tried.")
    return best
