"""Planar classification (thesis 3.4): perceptrons with one hidden layer on spirals or waves.

Every run draws its own points. The spirals of chapter 3 have a = 2, p = ½ and c = 0.02 unless a
figure says otherwise; a batch is a percentage of the training points ("2 % subsampling").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Optimizer

from ....batches import Shuffled
from ....data import spirals, trigonometric
from ....ensemble import Ensemble
from ....init import gaussian_
from ....models import shlp
from ...run import Fit, Run, accuracy_and_loss, both

Draw = Callable[..., tuple[Tensor, Tensor]]
Method = Callable[[Ensemble], Optimizer]
Start = Callable[[nn.Module], nn.Module]

TWO_TURNS: Draw = partial(spirals, turns=2, scale=2.0, noise=0.02)
FOUR_TURNS: Draw = partial(spirals, turns=4, scale=2.0, noise=0.02)
COMPILE_AFTER = 4000  # steps


def waves(length: float, frequency: float) -> Draw:
    """The trigonometric data (3.33) with more crossings for larger a, as in the thesis's text."""
    return partial(trigonometric, length=length, frequency=frequency, noise=0.02, per_unit_length=True)


def loss(output: Tensor, target: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(output.squeeze(-1), target)


def small_gaussian(model: nn.Module) -> nn.Module:
    """Weights and biases from 0.01 N(0, 1), the thesis's start for thermodynamic methods (Figs. 3.9, 3.14)."""
    for parameter in model.parameters():
        gaussian_(parameter)
    return model


def zeros(model: nn.Module) -> nn.Module:
    """All weights and biases zero, a stationary point without noise ("frequently" used, thesis 3.7)."""
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def pytorch_default(model: nn.Module) -> nn.Module:
    """PyTorch's start, U(−1/√N_in, 1/√N_in)."""
    return model


@dataclass(frozen=True)
class Problem:
    """Every run's points, (R, N, …), and the network that classifies them."""

    run: Run
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    hidden: int
    batch: int
    x_valid: Tensor | None = None
    y_valid: Tensor | None = None

    def ensemble(self, repeats: int = 1, start: Start = pytorch_default) -> Ensemble:
        return self.run.ensemble(lambda: start(shlp(2, self.hidden, 1)), repeats)

    def fit(
        self,
        arm: str,
        make: Method,
        steps: int,
        *,
        repeats: int = 1,
        start: Start = pytorch_default,
        evaluations: int = 40,
    ) -> Fit:
        """Train one method, or ``repeats`` settings of it, from the runs' initial weights."""
        ensemble = self.ensemble(repeats, start)
        return self.continue_fit(arm, ensemble, make(ensemble), steps, evaluations=evaluations)

    def continue_fit(
        self, arm: str, ensemble: Ensemble, optimizer: Optimizer, steps: int, *, done: int = 0, evaluations: int = 40
    ) -> Fit:
        """Train what has already taken ``done`` steps; the order of the batches depends on that number."""
        x, y, x_test, y_test, *valid = (
            part.repeat(ensemble.repeats, *[1] * (part.ndim - 1))
            for part in (self.x, self.y, self.x_test, self.y_test, self.x_valid, self.y_valid)
            if part is not None
        )
        batches = Shuffled(x, y, self.batch, ensemble.seeds + done, own_data=True)
        on_train = accuracy_and_loss(loss, x, y, "train", shared=False)
        on_test = accuracy_and_loss(loss, x_test, y_test, "test", shared=False)
        evaluate = both(on_train, on_test)
        if valid:
            evaluate = both(evaluate, accuracy_and_loss(loss, valid[0], valid[1], "valid", shared=False))
        # Uncompiled, normals keyed by replica cost milliseconds a step, however small the network.
        compiled = True if steps >= COMPILE_AFTER else None
        return self.run.fit(arm, ensemble, optimizer, loss, batches, steps, evaluate, evaluations, compiled=compiled)


def problem(
    run: Run,
    draw: Draw,
    *,
    train: int = 1000,
    test: int = 1000,
    hidden: int,
    percent: float = 2,
    validate: bool = False,
) -> Problem:
    """Draw every run's points; the defaults are those of most figures of chapter 3.

    ``validate`` draws as many again as there are test points, to choose settings by. The other points stay the same.
    """
    sizes = (train, test, test) if validate else (train, test)
    sets = [[part for size in sizes for part in draw(size, generator=g)] for g in run.generators()]
    x, y, x_test, y_test, *valid = (torch.stack(part).to(run.device) for part in zip(*sets, strict=True))
    return Problem(run, x, y, x_test, y_test, hidden, max(1, round(train * percent / 100)), *valid)
