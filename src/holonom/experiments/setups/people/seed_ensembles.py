"""One network trained from many seeds to the same test accuracies (thesis Fig. 6.21 and Table 6.9).

A repetition is ten networks that differ in their seeds alone; deviations are over repetitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from ....metrics import Agreement, agreement
from ...run import Run
from .study import SCALES as NINE
from .study import Inputs, predict, prepare, report_accuracies

KINDS = {"MLP": "MLP1", "CNN": "CNN1", "ViT": "ViT1"}  # all by Adam with h = 5e-4 and batches of 128

SCALES: dict[str, dict[str, Any]] = {
    "smoke": {**NINE["smoke"], "replicas": 2, "seeds": 2, "more_targets": {"CNN": (0.6,)}},
    "ci": {**NINE["ci"], "replicas": 2, "seeds": 3, "more_targets": {"CNN": (0.94,)}},
    "large": {**NINE["paper"], "replicas": 10, "seeds": 10, "more_targets": {"CNN": (0.99,)}, "look_every": 20},
    "paper": {**NINE["paper"], "replicas": 10, "seeds": 10, "more_targets": {"CNN": (0.99, 0.995)}, "look_every": 20},
}


@dataclass(frozen=True)
class SeedEnsemble:
    """Predictions of all networks of one kind: ``probabilities`` are (targets, repetitions · seeds, N, 10)."""

    kind: str
    targets: tuple[float, ...]
    seeds: int
    probabilities: Tensor

    def predictions(self, target: int) -> Tensor:
        """(repetitions, seeds, N) labels."""
        labels = self.probabilities[target].argmax(-1)
        return labels.reshape(-1, self.seeds, labels.shape[-1])

    def agreements(self, target: int, people: Tensor) -> list[Agreement]:
        """One comparison for each repetition."""
        return [agreement(labels, people) for labels in self.predictions(target)]


def seed_ensembles(run: Run, settings: SimpleNamespace) -> tuple[Inputs, dict[str, SeedEnsemble]]:
    """The images and people's labels, and the networks of every kind."""
    inputs = prepare(run, settings)
    predictions, ensembles = {}, {}
    for kind, name in KINDS.items():
        targets = (*settings.targets, *settings.more_targets.get(kind, ()))
        predictions[kind] = predict(run, settings, name, inputs, targets, settings.seeds)
        ensembles[kind] = SeedEnsemble(kind, targets, settings.seeds, predictions[kind]["probabilities"])
    report_accuracies(run, settings, predictions, max((one.targets for one in ensembles.values()), key=len))
    return inputs, ensembles
