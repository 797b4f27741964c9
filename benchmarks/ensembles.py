"""A hundred small perceptrons trained at once against one trained by a plain loop (paper Table 1's network)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holonom import Ensemble
from holonom._training.stepper import Stepper
from holonom.batches import Shuffled
from holonom.data import spirals
from holonom.experiments.setups.planar.spiral_circle import BATCH, METHODS, RADII, STEP, TEMPERATURE, loss, model

from .timing import Contender, Runnable

TRAINING_POINTS = 100
STEPS = TRAINING_POINTS // BATCH  # an epoch, which is what is timed: a training loop knows where one ends


def _data(replicas: int, device: str) -> tuple[Tensor, Tensor]:
    sets = [spirals(TRAINING_POINTS, generator=torch.Generator().manual_seed(i)) for i in range(replicas)]
    x, y = (torch.stack(parts).to(device) for parts in zip(*sets, strict=True))
    return x, y


def stepper(method: str, replicas: int, device: str = "cpu", compiled: bool = True) -> tuple[Stepper, Shuffled]:
    """All replicas of one method, ready to step."""
    ensemble = Ensemble(model, replicas, seed=0).to(device)
    batches = Shuffled(*_data(replicas, device), BATCH, ensemble.seeds, own_data=True)
    return Stepper(ensemble, METHODS[method](ensemble), loss, batches, compiled), batches


def together(method: str, replicas: int, target: float | None = None, compiled: bool = True) -> Contender:
    """An epoch of every replica, shuffling left out on both sides."""

    def build() -> Runnable:
        run, batches = stepper(method, replicas, compiled=compiled)
        order = batches.order(0)
        return Runnable(lambda: run.run(order), steps=STEPS)

    name = f"{replicas} replicas, {method}{'' if compiled else ', not compiled'}"
    return Contender(name, "holonom", build, target)


def alone(method: str) -> Contender:
    """The loop a researcher would write for one model: no library, every operation in sight."""
    step = {"SGD": _sgd_by_hand, "C-SGLD": _csgld_by_hand}[method]

    def build() -> Runnable:
        x, y = (part[0] for part in _data(1, "cpu"))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split(BATCH)
        torch.manual_seed(0)
        network = model()
        update = step(network)

        def epoch() -> None:
            for index in order:
                network.zero_grad()
                loss(network(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
                update()

        return Runnable(epoch, steps=STEPS)

    return Contender(f"one replica, {method}, plain loop", "baseline" if method == "C-SGLD" else "peer", build)


def _sgd_by_hand(network: nn.Module) -> Callable[[], None]:
    def update() -> None:
        with torch.no_grad():
            for p in network.parameters():
                p -= STEP * p.grad  # type: ignore[operator]

    return update


def _csgld_by_hand(network: nn.Module) -> Callable[[], None]:
    size = (2 * TEMPERATURE * STEP) ** 0.5
    weights = [p for p in network.parameters() if p.ndim == 2]
    slack = [(r * r - p.detach().square()).clamp(min=0).sqrt() for p, r in zip(weights, RADII, strict=True)]

    def update() -> None:
        with torch.no_grad():
            for p, xi, r in zip(weights, slack, RADII, strict=True):
                theta = p - STEP * p.grad + size * torch.randn_like(p)  # type: ignore[operator]
                other = xi + size * torch.randn_like(p)
                scale = r / (theta.square() + other.square()).sqrt()
                p.copy_(theta * scale)
                xi.copy_(other * scale)
            for p in network.parameters():
                if p.ndim == 1:
                    p += -STEP * p.grad + size * torch.randn_like(p)  # type: ignore[operator]

    return update


def floor(replicas: int) -> Contender:
    """What the step must move at least: read and write every weight, its slack and its gradient once."""

    def build() -> Runnable:
        count = sum(p.numel() for p in model().parameters()) * replicas
        weights, slack, gradient = (torch.randn(count) for _ in range(3))
        products = 3 * 2 * BATCH * 1500 * replicas  # forward, and backward to weights and activations

        def touch() -> None:
            for _ in range(STEPS):
                weights.add_(gradient)
                slack.add_(gradient)

        def note() -> str:
            return f"{products / 1e6:.1f} MFLOP and {5 * 4 * count / 1e6:.1f} MB a step"

        return Runnable(touch, note=note, steps=STEPS)

    return Contender(f"{replicas} replicas, read and write everything once", "floor", build)
