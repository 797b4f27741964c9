"""The set-up of paper Figs. 4, 5 and D2: perceptrons of growing depth on a tightly wound spiral.

p hidden layers of 100 ReLU units, four-turn spirals (4.58) with 500 training and 1000 test points
drawn separately for every run, batches of 5 %. The weights between hidden layers are free, penalised or
orthogonal; the first and the last layer are free in every method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from .... import presets
from ....batches import Shuffled
from ....data import spirals
from ....ensemble import Ensemble
from ....init import orthogonal_
from ....models import mlp
from ....optimizer import Langevin
from ....penalties import orthogonal_penalty
from ....training import Evaluate
from ...run import Fit, Run

STEP, BATCH, PER_EPOCH = 0.1, 25, 20


class DeepPerceptron(nn.Module):
    """Returns logits and the penalty λ Σ ‖WᵀW − I‖² over the weights between hidden layers.

    λ is a buffer, so that members of an ensemble can have different ones; 0 by default. Without ``penalised`` the
    penalty is not computed: its products take longer than the rest of a step.
    """

    strength: Tensor

    def __init__(self, depth: int, orthogonal: bool = False, penalised: bool = False) -> None:
        super().__init__()
        self.body = mlp([2, *[100] * depth, 1])
        self.penalised = penalised
        self.register_buffer("strength", torch.zeros(()))
        if orthogonal:
            for weight in self.hidden_weights():
                orthogonal_(weight)

    def hidden_weights(self) -> list[Tensor]:
        linear = [layer for layer in self.body if isinstance(layer, nn.Linear)]
        return [layer.weight for layer in linear[1:-1]]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        penalty = orthogonal_penalty(self.hidden_weights(), 1.0) if self.penalised else 0.0
        return self.body(x).squeeze(-1), self.strength * penalty


def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    logits, penalty = output
    return binary_cross_entropy_with_logits(logits, target) + penalty


def data(run: Run, train: int = 500, test: int = 1000, validate: bool = False) -> list[Tensor]:
    """x, y, x_test, y_test, every run with its own points: (R, N, …); and x_valid, y_valid to choose settings by."""
    options = {"turns": 4.0, "scale": 2.0, "noise": 0.02}
    sizes = (train, test, test) if validate else (train, test)
    sets = [[part for size in sizes for part in spirals(size, generator=g, **options)] for g in run.generators()]
    return [torch.stack(parts).to(run.device) for parts in zip(*sets, strict=True)]


def free(
    run: Run,
    arm: str,
    sets: list[Tensor],
    depth: int,
    epochs: int,
    *,
    orthogonal: bool = False,
    strengths: Sequence[float] = (0.0,),
    steps: Sequence[float] | None = None,
    also: Evaluate | None = None,
) -> Fit:
    """SGD from PyTorch's or an orthogonal start, with one penalty λ (and h) for each repeat of the runs.

    ``also`` gives more metrics.
    """
    ensemble = run.ensemble(lambda: DeepPerceptron(depth, orthogonal, any(strengths)), len(strengths))
    ensemble.get_buffer("strength").copy_(ensemble.spread(strengths))
    h = STEP if steps is None else ensemble.spread(steps)
    optimizer = Langevin(ensemble.parameters(), h, scheme="L", seed=ensemble.seeds)
    return _train(run, arm, sets, ensemble, optimizer, epochs, also)


def constrained(
    run: Run,
    arm: str,
    sets: list[Tensor],
    depth: int,
    epochs: int,
    temperatures: Sequence[float] = (0.0,),
    also: Evaluate | None = None,
) -> Fit:
    """o-CoLA-od from the same orthogonal start, with one temperature for each repeat of the runs."""
    ensemble = run.ensemble(lambda: DeepPerceptron(depth, True), len(temperatures))
    temperature: Any = ensemble.spread(temperatures) if any(temperatures) else 0.0
    return _train(run, arm, sets, ensemble, presets.o_cola_od(ensemble, STEP, temperature), epochs, also)


def _train(
    run: Run,
    arm: str,
    sets: list[Tensor],
    ensemble: Ensemble,
    optimizer: Langevin,
    epochs: int,
    also: Evaluate | None = None,
) -> Fit:
    x, y, x_test, y_test, *valid = (part.repeat(ensemble.repeats, *[1] * (part.ndim - 1)) for part in sets)
    batches = Shuffled(x, y, BATCH, ensemble.seeds, own_data=True)

    def evaluate(ensemble: Ensemble) -> dict[str, Tensor]:
        on_valid = _metrics(ensemble, valid[0], valid[1], "valid") if valid else {}
        more = also(ensemble) if also else {}
        return {**_metrics(ensemble, x, y, "train"), **_metrics(ensemble, x_test, y_test, "test"), **on_valid, **more}

    steps = epochs * batches.per_epoch
    # As a CUDA graph these steps are short already; compiling for every depth would take longer than training.
    compiled = False if ensemble.seeds.is_cuda else None
    return run.fit(arm, ensemble, optimizer, loss, batches, steps, evaluate, min(40, epochs), compiled=compiled)


def _metrics(ensemble: Ensemble, x: Tensor, y: Tensor, prefix: str) -> dict[str, Tensor]:
    """Loss without the penalty, and accuracy; ½ for a diverged run."""
    logits, _ = ensemble(x, shared=False)
    cross_entropy = binary_cross_entropy_with_logits(logits, y, reduction="none").mean(1)
    hits = ((logits > 0) == (y > 0.5)).float().mean(1)
    return {f"{prefix}_loss": cross_entropy, f"{prefix}_accuracy": hits.where(cross_entropy.isfinite(), 0.5)}
