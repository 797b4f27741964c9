"""What a run is made of. The script of a run contains the source of these functions, so that it repeats the run."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import holonom
from holonom.batches import Shuffled
from holonom.metrics import Thermometer, boundary_curvature, boundary_curvatures, mean_curvature

TEST = 1000  # points

# ── data ─────────────────────────────────────────────────────────────────────────────────────────


def spirals(points: int, generator: torch.Generator, turns: float, noise: float, scale: float) -> tuple[Tensor, Tensor]:
    return holonom.data.spirals(points, turns=turns, scale=scale, noise=noise, generator=generator)


def waves(points: int, generator: torch.Generator, waves: float, noise: float, scale: float) -> tuple[Tensor, Tensor]:
    x, y = holonom.data.trigonometric(points, length=2.4, frequency=waves, noise=noise / scale, generator=generator)
    return scale * (x - torch.tensor([1.2, 0.0])), y


def circles(points: int, generator: torch.Generator, noise: float, scale: float) -> tuple[Tensor, Tensor]:
    return holonom.data.circles(points, scale=scale, noise=noise, generator=generator)


def xor(points: int, generator: torch.Generator, noise: float, scale: float) -> tuple[Tensor, Tensor]:
    return holonom.data.xor(points, scale=scale, noise=noise, generator=generator)


def painted(rows: list[list[float]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test points: every fourth painted point is held out."""
    points = torch.tensor(rows)
    out = torch.arange(len(rows)) % 4 == 3
    test = points[out] if bool(out.any()) else points
    return points[~out, :2], points[~out, 2], test[:, :2], test[:, 2]


# ── the network ──────────────────────────────────────────────────────────────────────────────────


def network(sizes: list[int], activation: type[nn.Module], start: str) -> nn.Module:
    model = holonom.models.mlp(sizes, activation)
    if start == "small":
        for parameter in model.parameters():
            holonom.init.gaussian_(parameter, 0.01)
    return model


def networks(sizes: list[int], activation: type[nn.Module], start: str, replicas: int, seed: int) -> tuple[Any, Any]:
    """A model, or an ensemble of them, and what keys its noise. Replica 0 is the model that runs alone."""
    ensemble = holonom.Ensemble(lambda: network(sizes, activation, start), replicas, seed=seed)
    return (ensemble, ensemble.seeds) if replicas > 1 else (ensemble.alone(0), int(ensemble.seeds[0]))


def loss(output: Tensor, target: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(output.squeeze(-1), target)


@torch.no_grad()
def evaluate(model: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and accuracy; one number for every replica of an ensemble, NaN where an output is no number."""
    output = model(x).squeeze(-1)
    losses = binary_cross_entropy_with_logits(output, y.expand_as(output), reduction="none").mean(-1)
    right = ((output > 0) == (y > 0.5)).float()
    return losses, right.where(~output.isnan(), math.nan).mean(-1)


def curvature(model: Any, bound: float) -> float:
    """Mean |κ| of the decision boundary inside [−bound, bound]²; NaN where there is none."""
    measure = boundary_curvatures if isinstance(model, holonom.Ensemble) else boundary_curvature
    try:
        return mean_curvature(measure(lambda points: model(points).squeeze(-1), (-bound, bound), 81, level=0.0))
    except ValueError:  # the outputs are not finite
        return math.nan


# ── training ─────────────────────────────────────────────────────────────────────────────────────


class Arm:
    """A network in training. One step takes one batch; a setting may change between two steps."""

    READ_EVERY = 5  # steps

    def __init__(self, model: Any, optimizer: Any, places: dict[str, Any], radii: dict[str, Tensor]) -> None:
        self.model, self.optimizer, self.places, self.radii = model, optimizer, places, radii
        self.step = self.changed = 0
        self.stopped = ""  # why it takes no more steps
        self.thermometer: Thermometer | None = None
        self.since = 0  # the step from which on the thermometer reads
        self.restart()

    def restart(self) -> None:
        if isinstance(self.optimizer, holonom.Langevin):
            self.thermometer, self.since = Thermometer(self.optimizer), self.step

    def change(self, name: str, value: Any) -> None:
        """Let a setting act from the next step on."""
        if name in self.radii:
            self.radii[name].fill_(value)
            self.optimizer.project_()
        else:
            for key, groups in self.places[name]:
                for group in self.optimizer.param_groups[groups]:
                    group[key] = value
        self.changed = self.step
        self.restart()

    def advance(self, batches: Shuffled) -> None:
        """One step, unless the arm has stopped."""
        if self.stopped:
            return
        epoch, number = divmod(self.step, batches.per_epoch)
        x, y = batches.take(batches.order(epoch)[number])
        self.optimizer.zero_grad()
        with self.optimizer.due() if isinstance(self.optimizer, holonom.Multirate) else nullcontext():
            value: Any
            if isinstance(self.model, holonom.Ensemble):
                value = self.model.losses(loss, x, y).sum()
            else:
                value = loss(self.model(x), y)
            if not value.isfinite():
                self.stopped = "the loss is not finite any more"
                return
            value.backward()
        try:
            self.read()
            self.optimizer.step()
        except (holonom.NonFiniteGradientError, holonom.ProjectionError) as error:
            self.stopped = str(error)
            return
        self.step += 1

    def read(self) -> None:
        """Read the temperatures; begin anew when twice as many steps have passed, to forget how the run began.

        Momenta are at the time of the positions when what a rotated word owes is paid.
        """
        age = self.step - self.changed
        anew = age >= 64 and age & (age - 1) == 0
        if anew:
            self.restart()
        if self.thermometer is not None and (anew or age % self.READ_EVERY == 0):
            self.optimizer.synchronize()
            self.thermometer.read()

    def residual(self) -> float:
        """The largest violation of a constraint; NaN without one."""
        if not isinstance(self.optimizer, holonom.Langevin):
            return math.nan
        held = [group["constraint"] != "Free()" for group in self.optimizer.param_groups]
        found = [residual for residual, is_held in zip(self.optimizer.residuals(), held, strict=True) if is_held]
        return max(found, default=math.nan)

    def temperatures(self) -> list[list[float]]:
        """Target, kinetic and configurational temperature of every layer, means over its degrees of freedom."""
        if self.thermometer is None or not self.thermometer.readings:
            return []
        layers: dict[int, list[Any]] = {}
        for row in self.thermometer.table():
            layers.setdefault(int(row.name.split(".")[0]), []).append(row)

        def mean(rows: list[Any], kind: str) -> Any:
            return sum(getattr(row, kind) * row.freedom for row in rows) / sum(row.freedom for row in rows)

        kinds = ("target", "kinetic", "configurational")
        return [[mean(rows, kind) for kind in kinds] for _, rows in sorted(layers.items())]
