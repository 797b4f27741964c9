"""Metrics on planes through weight space: through three states (thesis 3.4), random, or of a trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .directions import filter_normalised, principal_plane
from .path import _axes
from .points import Points, mix
from .states import State, Subject
from .sweep import Evaluate, Options, Sweep

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Surface:
    """Metrics on a grid of a plane.

    Attributes:
        x, y: (G,), the coordinates; their meaning depends on what made the surface.
        values: (metrics, G, G), or (metrics, replicas, G, G); [..., i, j] is at (x[i], y[j]).
        metrics: the rows' names.
        labels: what x and y are.
        marks: (S, 2), the coordinates of states to mark: minima, or a trajectory.
        residuals: (S,), the distance of each of them from the plane, relative to its distance from the centre; 0 for
            states in the plane.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        values: Tensor,
        metrics: Sequence[str],
        labels: tuple[str, str],
        marks: Tensor,
        residuals: Tensor,
    ) -> None:
        self.x, self.y, self.values = x, y, values
        self.metrics = tuple(metrics)
        self.labels = labels
        self.marks = marks
        self.residuals = residuals

    def __getitem__(self, metric: str) -> Tensor:
        if metric not in self.metrics:
            raise KeyError(f"{metric!r} was not measured; there are {', '.join(self.metrics)}")
        return self.values[self.metrics.index(metric)]

    def __repr__(self) -> str:
        low, high = float(self.values[0].min()), float(self.values[0].max())
        off = f", off-plane residual up to {float(self.residuals.max()):.2g}" if len(self.residuals) else ""
        return f"Surface({len(self.x)} × {len(self.y)}, {self.metrics[0]} from {low:.4g} to {high:.4g}{off})"

    def plot(self, axes: Any = None, metric: str | None = None, levels: int = 20, **style: Any) -> Any:
        """Contours of one metric (averaged over replicas) with the marked states."""
        axes = _axes(axes)
        name = metric or self.metrics[0]
        field = self[name]
        field = field if field.ndim == 2 else field.mean(0)
        drawn = axes.contourf(self.x, self.y, field.mT, levels=levels, **style)
        axes.figure.colorbar(drawn, ax=axes, label=name)
        if len(self.marks):
            axes.plot(self.marks[:, 0], self.marks[:, 1], "o-", color="white", markersize=3, linewidth=1)
        if bool((self.residuals > 1e-6).any()):
            axes.set_title(f"off-plane residual up to {float(self.residuals.max()):.0%}")
        axes.set_xlabel(self.labels[0])
        axes.set_ylabel(self.labels[1])
        return axes


def surface(
    model: nn.Module,
    start: State | nn.Module,
    ends: tuple[State | nn.Module, State | nn.Module],
    evaluate: Evaluate,
    grid: int = 41,
    *,
    coordinates: str = "fan",
    margin: float = 0.25,
    **options: Unpack[Options],
) -> Surface:
    """Metrics on the triangle, or the plane, through one start and two ends (thesis 3.4).

    "fan" is the thesis's:  θ(α, β) = β F₁ + (1 − β) F₂  with  Fᵢ = θ₀ + α (θᵢ − θ₀);  α = 0 is the start for
    every β, (1, 1) is the first end and (1, 0) the second. "plane" is  θ₀ + x (θ₁ − θ₀) + y (θ₂ − θ₀)  with
    x, y from −margin to 1 + margin.

    Args:
        grid: points per side.
    """
    if coordinates not in ("fan", "plane"):
        raise ValueError(f"coordinates must be 'fan' or 'plane', got {coordinates!r}")
    if len(ends) != 2:
        raise ValueError(f"a surface needs two ends, got {len(ends)}")
    subject = Subject(model, options.get("replicas"))
    states = [subject.take(start, "start"), *(subject.take(end, f"end {i + 1}") for i, end in enumerate(ends))]
    low, high = (0.0, 1.0) if coordinates == "fan" else (-margin, 1 + margin)
    x = _axis(low, high, grid)
    a, b = torch.meshgrid(x, x, indexing="ij")
    u, v = (a * b, a * (1 - b)) if coordinates == "fan" else (a, b)
    coefficients = torch.stack([1 - u - v, u, v], -1).flatten(0, 1)
    names, values = _measured(subject, mix(states, coefficients), evaluate, grid, options)
    if coordinates == "fan":
        marks = torch.tensor([[1.0, 1.0], [0.0, 0.5], [1.0, 0.0]])
        return Surface(x, x, values, names, ("α", "β"), marks, torch.zeros(3))
    marks = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    return Surface(x, x, values, names, ("towards end 1", "towards end 2"), marks, torch.zeros(3))


def random_plane(
    model: nn.Module,
    center: State | nn.Module,
    evaluate: Evaluate,
    grid: int = 41,
    *,
    span: float = 1.0,
    seed: int = 0,
    **options: Unpack[Options],
) -> Surface:
    """Metrics around a state in two random, filter-normalised directions.

    Every direction is normal noise, rescaled filter by filter to the norms of the state's filters (a row of a matrix,
    an output channel of a kernel); biases, norms and buffers are fixed. x and y run from −span to span.
    """
    subject = Subject(model, options.get("replicas"))
    state = subject.take(center, "center")
    directions = [filter_normalised(subject, state, seed, number) for number in (0, 1)]
    x = _axis(-span, span, grid)
    names, values = _measured(subject, mix([*directions, state], _offsets(x, x)), evaluate, grid, options)
    return Surface(x, x, values, names, ("direction 1", "direction 2"), torch.zeros(1, 2), torch.zeros(1))


def trajectory_plane(
    model: nn.Module,
    states: Sequence[State | nn.Module],
    evaluate: Evaluate,
    grid: int = 41,
    *,
    margin: float = 0.2,
    **options: Unpack[Options],
) -> Surface:
    """Metrics in the plane of the two principal components of a saved trajectory, around its last state.

    ``marks`` are the states projected onto the plane, ``residuals`` their distances from it. Buffers are those of the
    last state.
    """
    subject = Subject(model, options.get("replicas"))
    if subject.replicas is not None:
        raise ValueError("replicas have different principal components; give ensemble.alone(i) and its states")
    if len(states) < 3:
        raise ValueError(f"principal components need at least 3 states, got {len(states)}")
    taken = [subject.take(state, f"state {i}") for i, state in enumerate(states)]
    directions, marks, residuals = principal_plane(subject, taken)
    x, y = (_axis(*_range(marks[:, k], margin), grid) for k in (0, 1))
    names, values = _measured(subject, mix([*directions, taken[-1]], _offsets(x, y)), evaluate, grid, options)
    return Surface(x, y, values, names, ("component 1", "component 2"), marks, residuals)


def _measured(
    subject: Subject, points: Points, evaluate: Evaluate, grid: int, options: Options
) -> tuple[tuple[str, ...], Tensor]:
    labels = [f"grid point ({i}, {j})" for i in range(grid) for j in range(grid)]
    names, (values,) = Sweep(subject, [points], evaluate, **options).run(labels, stacklevel=4)
    return names, values.reshape(*values.shape[:-1], grid, grid)


def _axis(low: float, high: float, grid: int) -> Tensor:
    if grid < 2 or not low < high:
        raise ValueError(f"a grid needs 2 points and a positive width, got {grid} from {low} to {high}")
    return torch.linspace(low, high, grid, dtype=torch.float64)


def _range(marks: Tensor, margin: float) -> tuple[float, float]:
    low, high = float(marks.min()), float(marks.max())
    room = max(margin * (high - low), 1e-12)
    return low - room, high + room


def _offsets(x: Tensor, y: Tensor) -> Tensor:
    """Coefficients (a, b, 1) of two directions and the centre."""
    a, b = torch.meshgrid(x, y, indexing="ij")
    return torch.stack([a, b, torch.ones_like(a)], -1).flatten(0, 1)
