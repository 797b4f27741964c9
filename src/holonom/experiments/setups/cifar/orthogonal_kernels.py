"""The set-up of paper Figs. 6 and D3: a ResNet-34 on CIFAR-10, free or with orthogonal kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...._step.integrate import Phase
from ....constraints import Orthogonal
from ....partitions import hidden, locate, weights
from ... import ranks
from ...run import Run
from .networks import Network, untrained
from .optimizers import CONSTRAINED
from .recipes import Recipe
from .training import ACCURACIES, Trained, Training

SMOKE: dict[str, Any] = {
    "replicas": 2, "width": 2, "pool": True, "train": 64, "test": 32, "epochs": 3, "batch": 16, "compiled": False,
}  # fmt: skip
CI: dict[str, Any] = {
    "replicas": 2, "width": 8, "pool": True, "train": 2000, "test": 500, "epochs": 6, "batch": 64, "compiled": False,
}  # fmt: skip
PAPER: dict[str, Any] = {
    "replicas": 5, "width": 64, "pool": False, "train": 50_000, "test": 10_000, "epochs": 150, "batch": 128,
    "compiled": False,
}  # fmt: skip
PANELS = {"train_loss": "train loss", "test_loss": "test loss", "test_accuracy": "test accuracy, %"}


def train(run: Run, settings: SimpleNamespace, recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, Trained]:
    """All arms, each given by its changes to the ResNet-34's recipe; residuals are those of the trained weights."""
    training = Training(run, settings)
    arms = {}
    for name, changes in recipes.items():
        found = [0.0]
        recipe = replace(training.base, architecture="resnet34", **changes)
        arms[name] = training.train(name, recipe, inspect=partial(_append_violation, found))
        arms[name].residual = ranks.largest(float(np.max(found)))
    run.save_curves(arms)
    run.summary(arms, ACCURACIES, "After training")
    return arms


def _append_violation(found: list[float], recipe: Recipe, network: Network) -> None:
    if recipe.method in CONSTRAINED:
        found.append(violation(recipe, network))


def violation(recipe: Recipe, network: Network) -> float:
    """The largest |QᵀQ − I| of a trained network's hidden weights."""
    model = untrained(recipe)
    model.load_state_dict(network.trained)
    found = []
    for place in locate(model):
        if weights(place) and hidden(place):
            space = Orthogonal(place.view)
            block = space.view(place.parameter.detach())
            found.append(float(space.residual(Phase(block))))
    return float(np.max(found))


def draw(run: Run, arms: Mapping[str, Trained], caption: str) -> None:
    """Curves of the runs that did not diverge."""
    with run.figure(run.id, caption, ncols=3, figsize=(13, 4.2)) as axes:
        for panel, (metric, heading) in zip(axes[0], PANELS.items(), strict=True):
            for name, arm in arms.items():
                values = arm.curves[metric] * (100 if heading.endswith("%") else 1)
                epochs = range(1, len(values) + 1)
                values = values[:, np.isfinite(values).all(0)]
                if not values.size:
                    continue
                (line,) = panel.plot(epochs, values.mean(1), label=name)
                panel.fill_between(epochs, values.min(1), values.max(1), color=line.get_color(), alpha=0.15, lw=0)
            panel.set(xlabel="epoch", ylabel=heading)
            panel.grid(alpha=0.3)
        axes[0, 0].set_yscale("log")
        axes[0, 0].legend(frameon=False)


def setup_note(settings: SimpleNamespace) -> str:
    """The note that both figures have."""
    less = settings.epochs < PAPER["epochs"] or settings.width < PAPER["width"] or settings.train < PAPER["train"]
    return (
        f"A ResNet-34 with a 3×3 first convolution, {'with' if settings.pool else 'without'} the pooling behind it; "
        f"{settings.epochs} epochs ({PAPER['epochs']} in the paper) of {settings.train:,} images, cropped and flipped. "
        "All weights but the first and last layer's are orthogonal as (out, in·kh·kw); they start at the matrices "
        "nearest to the free networks' initial weights. A GPU computes in bfloat16 with float32 weights and steps."
        + (" Trained less than the paper's, these networks are not held against its numbers." if less else "")
    )
