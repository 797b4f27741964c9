"""The set-up of paper Table 2: a small transformer that predicts the next word.

Two encoder layers with 2 heads and 200 feed-forward units, all runs reading the same text in the same
order: 1024 columns of Penn Treebank, 128 of WikiText-2. The papers do not give width (200), dropout (0.2)
and the length of a window (35); there is no gradient clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from ....batches import Windows
from ....constraints import Circle
from ....data import Corpus, batches, windows
from ....ensemble import Ensemble
from ....models import TransformerLM
from ....optimizer import Langevin
from ....partitions import Place, partition
from ...run import Array, Fit, Run
from .optimizers import Momentum, initial_projection
from .shrinking_circles import ShrinkingCircles

LENGTH, COLUMNS_AT_ONCE = 35, 256
COMPILE_AFTER = 4000  # steps; a GPU then saves half a minute


class Circles(NamedTuple):
    """A setting of c-CoLA-ud; ``radius`` is that of embedding and decoder."""

    lr: float = 0.4
    friction: float = 0.5
    radius: float = 0.5
    linear: float = 0.1
    norm: float = 1.0
    attention: float = 1.0

    def __str__(self) -> str:
        radii = f"r={self.radius:g} r_L={self.linear:g} r_N={self.norm:g} r_A={self.attention:g}"
        return f"h={self.lr:g} γ={self.friction:g} {radii}"

    def radii(self) -> dict[str, float]:
        """By the role of the layer."""
        return {**{role: getattr(self, role) for role in ("linear", "norm", "attention")},
                "embedding": self.radius, "decoder": self.radius}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """Columns to train and to validate on, (time, columns), and the size of their model."""

    train: Tensor
    valid: Tensor
    vocabulary: int
    width: int

    def model(self) -> nn.Module:
        return TransformerLM(self.vocabulary, self.width, feedforward=self.width)

    def held_out(self, share: float = 0.1) -> Text:
        """The last part of every column of the training text, a window at least, to validate on; the rest to train."""
        cut = len(self.train) - max(LENGTH + 1, round(share * len(self.train)))
        columns = min(self.train.shape[1], COLUMNS_AT_ONCE)
        return Text(self.train[:cut], self.train[cut:, :columns], self.vocabulary, self.width)


def text(run: Run, corpus: Corpus, columns: int, width: int, most: int | None = None) -> Text:
    """A corpus as columns on the run's device; ``most`` takes the beginnings of both texts only."""
    train, valid = batches(corpus.train[:most], columns), batches(corpus.valid[:most], min(columns, COLUMNS_AT_ONCE))
    return Text(train.to(run.device), valid.to(run.device), len(corpus.vocabulary), width)


def loss(output: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(output.flatten(0, -2), target.flatten())


def c_cola_ud(ensemble: Ensemble, circles: Circles) -> Optimizer:
    """Circles on every weight, their radius by the role of the layer; biases are free."""
    groups = _by_role(ensemble, circles, lambda radius: {"constraint": Circle(radius)})
    with initial_projection():  # norms start at weight 1 = r_N
        return Langevin(groups, circles.lr, scheme="ABO", friction=circles.friction, seed=ensemble.seeds)


def shrinking(ensemble: Ensemble, circles: Circles) -> ShrinkingCircles:
    """The same weights on the published code's circles, which shrink."""
    groups = _by_role(ensemble, circles, lambda radius: {"radius": radius})
    return ShrinkingCircles(groups, circles.lr, circles.friction)


def _by_role(ensemble: Ensemble, circles: Circles, options: Callable[[float], dict[str, Any]]) -> list[dict[str, Any]]:
    def weights_of(role: str) -> Any:
        return lambda place: _is_weight(place) and fnmatchcase(place.name, TransformerLM.roles[role])

    rules = [(weights_of(role), options(radius)) for role, radius in circles.radii().items()]
    return partition(ensemble, [*rules, ("rest", {})], verbose=False)


def optimizer(method: Circles | Momentum) -> Callable[[Ensemble], Optimizer]:
    """Makes the optimizer with these settings."""
    if isinstance(method, Circles):
        return lambda ensemble: c_cola_ud(ensemble, method)
    lr, momentum, decay, _ = method
    return lambda ensemble: torch.optim.SGD(ensemble.parameters(), lr, momentum=momentum, weight_decay=decay)


def _is_weight(place: Place) -> bool:
    return place.name.endswith("weight")


def fit(run: Run, arm: str, text: Text, make: Any, epochs: int, ensemble: Ensemble | None = None) -> Fit:
    """Train on windows of the text; validation loss after every second epoch."""
    ensemble = run.ensemble(text.model) if ensemble is None else ensemble
    batches = Windows(text.train, LENGTH)
    steps = epochs * batches.per_epoch

    def evaluate(ensemble: Ensemble) -> dict[str, Tensor]:
        parts = [(ensemble.losses(loss, x, y), y.numel()) for x, y in windows(text.valid, LENGTH)]
        return {"valid_loss": torch.stack([value * count for value, count in parts]).sum(0) / sum(n for _, n in parts)}

    with tf32_products(run.device):
        return run.fit(
            arm,
            ensemble,
            make(ensemble),
            loss,
            batches,
            steps,
            evaluate,
            evaluations=max(2, epochs // 2),
            # Fusing the passes over all words' scores halves a GPU's time.
            compiled="gradients" if run.device.type == "cuda" and steps >= COMPILE_AFTER else False,
            checkpoint_every=steps // 20,  # of WikiText-2 every minute or two
        )


def lowest(fit: Fit) -> Array:
    """(runs,) smallest validation loss during training."""
    smallest: Array = fit.curves["valid_loss"].min(0)
    return smallest


@contextmanager
def tf32_products(device: torch.device) -> Iterator[None]:
    """Matrix products with TF32 inputs on a GPU: several times faster, with errors below the noise of dropout."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
