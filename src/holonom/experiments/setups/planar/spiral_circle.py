"""The set-up of paper Figs. 1–3 and Tables 1 and 4.5: circle constraints on a perceptron, noisy two-turn spirals.

A 2-500-1 ReLU perceptron, 100 training and 2000 test points (4.59) drawn separately for every run,
batches of 2, h = 0.05, 10,000 epochs; circle radii r₀ = 1 and r₁ = 5.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Optimizer

from .... import presets
from ....batches import Shuffled
from ....data import spirals
from ....ensemble import Ensemble
from ....training import Evaluate
from ...run import Fit, Run, accuracy_and_loss, both

STEP, RADII, BATCH, TEMPERATURE, WEIGHT_DECAY = 0.05, (1.0, 5.0), 2, 5e-5, 1e-4
PER_EPOCH = 50


def model(hidden: int = 500) -> nn.Module:
    return nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def loss(output: Tensor, target: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(output.squeeze(-1), target)


def sgd(ensemble: Ensemble, weight_decay: float = 0.0) -> Optimizer:
    # In a captured graph a kernel for each of four tensors takes less time than torch's one for all, fused or not.
    return torch.optim.SGD(ensemble.parameters(), STEP, weight_decay=weight_decay, foreach=False)


def constrained(ensemble: Ensemble, temperature: Any = 0.0) -> Optimizer:
    """C-SGD, and C-SGLD above τ = 0."""
    return presets.c_cola_od(ensemble, STEP, RADII, temperature)


METHODS = {
    "SGD": sgd,
    "SGD+WD": lambda ensemble: sgd(ensemble, WEIGHT_DECAY),
    "C-SGD": constrained,
    "SGLD": lambda ensemble: presets.sgld(ensemble, STEP, TEMPERATURE),
    "C-SGLD": lambda ensemble: constrained(ensemble, TEMPERATURE),
}


def data(run: Run, train: int = 100, test: int = 2000) -> list[Tensor]:
    """x, y, x_test, y_test, every run with its own points: (R, N, …)."""
    sets = [(*spirals(train, generator=g), *spirals(test, generator=g)) for g in run.generators()]
    return [torch.stack(parts).to(run.device) for parts in zip(*sets, strict=True)]


def fit(run: Run, name: str, sets: list[Tensor], epochs: int, make: Any = None, repeats: int = 1) -> Fit:
    """Train one method on every run's data; ``repeats`` for a grid."""
    x, y, x_test, y_test = (part.repeat(repeats, *[1] * (part.ndim - 1)) for part in sets)
    ensemble = run.ensemble(model, repeats)
    optimizer = (make or METHODS[name])(ensemble)
    batches = Shuffled(x, y, BATCH, ensemble.seeds, own_data=True)
    evaluate = metrics(x, y, x_test, y_test)
    steps = epochs * batches.per_epoch
    return run.fit(name, ensemble, optimizer, loss, batches, steps, evaluate, evaluations=min(40, epochs))


def metrics(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> Evaluate:
    train = accuracy_and_loss(loss, x, y, "train", shared=False)
    return both(train, accuracy_and_loss(loss, x_test, y_test, "test", shared=False))
