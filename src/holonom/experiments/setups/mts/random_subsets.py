"""The set-ups of thesis Figs. 5.7 and 5.8: random subsets of the weights are set to zero and catch up later (5.5.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ....ensemble import Ensemble
from ....models import TransformerLM
from ....multirate import RandomSubsets
from ..shared.language_model import Text

STEP = 0.1
Make = Callable[[Ensemble], Optimizer]


def sgd(momentum: float) -> Make:
    return lambda ensemble: torch.optim.SGD(ensemble.parameters(), STEP, momentum=momentum)


def subsets(probabilities: Mapping[str, float], momentum: float, steps_off: int | None = None) -> Make:
    """Weights matching a name pattern are off for k steps with its probability; what matches none is always on.

    Without a k another subset is zero at every step and nothing catches up.
    """

    def make(ensemble: Ensemble) -> Optimizer:
        groups: dict[float, list[nn.Parameter]] = {}
        for name, p in ensemble.named_parameters():
            chosen = [value for pattern, value in probabilities.items() if fnmatchcase(name, pattern)]
            groups.setdefault(chosen[0] if chosen else 0.0, []).append(p)
        return RandomSubsets(
            [{"params": params, "probability": probability} for probability, params in groups.items()],
            STEP,
            steps_off=steps_off or 1,
            catch_up=steps_off is not None,
            momentum=momentum,
            seed=ensemble.seeds,
        )

    return make


class Perceptron(nn.Sequential):
    """784-hidden-10 with dropout on the pixels and on the hidden units."""

    def __init__(self, hidden: int, dropout: tuple[float, float] = (0.0, 0.0)) -> None:
        super().__init__(
            nn.Dropout(dropout[0]), nn.Linear(784, hidden), nn.ReLU(), nn.Dropout(dropout[1]), nn.Linear(hidden, 10)
        )


def pixels(images: Tensor) -> Tensor:
    """(N, 784) numbers from 0 to 1."""
    return images.flatten(1).float() / 255


@dataclass(frozen=True)
class EncodedText(Text):
    """Text for a transformer with dropout in its encoder layers alone."""

    dropout: float = 0.0

    @classmethod
    def of(cls, text: Text, dropout: float) -> EncodedText:
        return cls(text.train, text.valid, text.vocabulary, text.width, dropout)

    def model(self) -> nn.Module:
        options: dict[str, Any] = {"feedforward": self.width, "dropout": self.dropout}
        model = TransformerLM(self.vocabulary, self.width, **options)
        model.dropout.p = 0.0
        return model
