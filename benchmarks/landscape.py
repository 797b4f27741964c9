"""A 51-point path between two states against the loop that loads and evaluates one point after another, and the
curvature of many classifiers against one classifier after another."""

from __future__ import annotations

import statistics
import time
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from holonom import Ensemble
from holonom.experiments.setups.planar.spiral_circle import model as spiral_model
from holonom.landscape import error_rate, interpolate, over
from holonom.metrics import boundary_curvatures
from holonom.models import mlp, resnet18

from .timing import Contender, Runnable

POINTS, BATCH = 51, 512
METRICS = {"loss": cross_entropy, "error": error_rate}
BOUND = 1.5
MANY = 100  # classifiers that are to take less than a minute


class Line:
    """Two states of a network and the images to evaluate them on, on the CPU or a GPU."""

    def __init__(self, sizes: tuple[int, ...] | None, images: int, device: str = "cpu") -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            if sizes is None:
                self.model, end, shape, classes = resnet18(), resnet18(), (3, 32, 32), 10
            else:
                self.model, end, shape, classes = mlp(sizes), mlp(sizes), sizes[:1], sizes[-1]
            self.data = torch.rand(images, *shape).to(device), torch.randint(classes, (images,)).to(device)
        self.model.to(device).eval()
        self.start = {name: x.clone() for name, x in self.model.state_dict().items()}
        self.end = end.to(device).state_dict()
        self.alphas = torch.linspace(0, 1, POINTS, dtype=torch.float64)

    @torch.no_grad()
    def by_loading(self) -> Tensor:
        """(metrics, points): mix the state_dicts, load them, read the data, 51 times."""
        rows = []
        for alpha in self.alphas.tolist():
            mixed = {name: (1 - alpha) * x + alpha * self.end[name] for name, x in self.start.items()}
            self.model.load_state_dict(mixed)
            totals = torch.zeros(len(METRICS), dtype=torch.float64, device=self.data[1].device)
            for x, y in zip(*(part.split(BATCH) for part in self.data), strict=True):
                output = self.model(x)
                totals += len(y) * torch.stack([metric(output, y) for metric in METRICS.values()])
            rows.append(totals / len(self.data[0]))
        return torch.stack(rows, 1).cpu()

    def together(self) -> Tensor:
        return interpolate(self.model, self.start, self.end, over(self.data, METRICS), POINTS, progress=False).values


@lru_cache(maxsize=1)
def _line(*key: Any) -> Line:
    """Shared by a section's contenders."""
    return Line(*key)


def loading_loop(*key: Any) -> Contender:
    return Contender(
        "load_state_dict and evaluate, point by point", "baseline", lambda: Runnable(_line(*key).by_loading)
    )


def all_points(*key: Any, target: float | None = None) -> Contender:
    """``key``: what :class:`Line` is made of."""

    def build() -> Runnable:
        line = _line(*key)

        def error() -> float:
            """Largest difference in loss, as a share of it."""
            expected = line.by_loading()[0]
            return float(((line.together()[0] - expected) / expected).abs().max())

        return Runnable(line.together, error=error)

    return Contender(f"interpolate, {POINTS} points together", "holonom", build, target, error_limit=1e-5)


# ── boundaries ───────────────────────────────────────────────────────────────────────────────────


def _classifiers(count: int) -> Ensemble:
    """Perceptrons 2-500-1 whose boundaries cross the square often: first weights are large, as after training."""
    ensemble = Ensemble(spiral_model, count, seed=0)
    with torch.no_grad():
        for name, p in ensemble.named_parameters():
            if name.startswith("0."):
                p.mul_(4)
    return ensemble.eval()


def one_by_one(count: int, grid: int) -> Contender:
    """The usual script: a classifier on all grid points, contourpy's lines, (4.60) from finite differences."""

    def build() -> Runnable:
        from contourpy import contour_generator

        models = _classifiers(count).unstack()
        axis = torch.linspace(-BOUND, BOUND, grid)
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        points = torch.stack([x.flatten(), y.flatten()], 1)

        @torch.no_grad()
        def step() -> None:
            for model in models:
                field = torch.sigmoid(model(points)).reshape(grid, grid).numpy()
                for line in contour_generator(axis.numpy(), axis.numpy(), field).lines(0.5):
                    if len(line) > 2:
                        first = np.gradient(line, axis=0)
                        second = np.gradient(first, axis=0)
                        bend = np.abs(second[:, 0] * first[:, 1] - first[:, 0] * second[:, 1])
                        np.divide(bend, (first**2).sum(1) ** 1.5 + 1e-30)

        return Runnable(step)

    return Contender("one classifier after another", "baseline", build)


def all_boundaries(count: int, grid: int) -> Contender:
    def build() -> Runnable:
        ensemble = _classifiers(count)
        seconds: list[float] = []

        def predict(points: Tensor) -> Tensor:
            return torch.sigmoid(ensemble(points).squeeze(-1))

        def step() -> None:
            started = time.perf_counter()
            boundary_curvatures(predict, (-BOUND, BOUND), grid)
            seconds.append(time.perf_counter() - started)

        def note() -> str:
            return f"{MANY} classifiers would take {statistics.median(seconds) * MANY / count:.3g} s"

        return Runnable(step, note=note)

    return Contender("boundary_curvatures, all together", "holonom", build)
