"""Straight (and geodesic) paths between states, whole or layer by layer (thesis, equations 3.34, 6.1, 6.2)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .geodesic import Constraints, constrained, departure, geodesics
from .path import Path, _axes
from .points import Points, mix
from .states import Blocks, State, Subject, blocks_of
from .statistics import batch_norms
from .sweep import Cost, Evaluate, Options, Sweep

if TYPE_CHECKING:
    from typing_extensions import Unpack


def interpolate(
    model: nn.Module,
    start: State | nn.Module,
    end: State | nn.Module,
    evaluate: Evaluate,
    alphas: int | Sequence[float] | Tensor = 51,
    *,
    constraints: Constraints = None,
    along: str = "line",
    **options: Unpack[Options],
) -> Path:
    """Metrics along θ(α) = (1 − α) θ_start + α θ_end (3.34), (6.1), all points evaluated together.

    The model's parameters, buffers and modes stay as they are, also after an error. The states at both ends are exact.
    Parameters and floating-point buffers move. :class:`Options` has batch-norm statistics, ensembles, autocast, memory,
    progress, and ``fast=False`` for the plain loop.

    Args:
        model: the network, or a :class:`holonom.Ensemble`.
        start, end: two states, as state_dicts or modules.
        evaluate: :func:`over` (data, metrics), or a function of the model that returns a number or several.
        alphas: their number, equally spaced in [0, 1], or their values.
        constraints: the optimizer, or {name pattern: constraint}: which parameters lie on a manifold. If the
            straight line leaves it there is a warning, and ``path.departure`` holds the distance.
        along: "line", or "geodesic" to move constrained parameters along their manifold: circle, sphere, orthogonal.
    """
    where = _alphas(alphas)
    subject = Subject(model, options.get("replicas"))
    points, off = _line(subject, subject.take(start, "start"), subject.take(end, "end"), where, constraints, along)
    names, (values,) = Sweep(subject, [points], evaluate, **options).run(_labels(where))
    return Path(where, values, names, points, _between, off)


def cost(
    model: nn.Module,
    start: State | nn.Module,
    end: State | nn.Module,
    evaluate: Evaluate,
    alphas: int | Sequence[float] | Tensor = 51,
    **options: Unpack[Options],
) -> Cost:
    """How long :func:`interpolate` with the same arguments will take, estimated from one batch."""
    subject = Subject(model, options.get("replicas"))
    points = mix([subject.take(start, "start"), subject.take(end, "end")], _pairs(_alphas(alphas)))
    return Sweep(subject, [points], evaluate, **options).cost()


def trajectory(
    model: nn.Module,
    states: Sequence[State | nn.Module],
    evaluate: Evaluate,
    between: int = 1,
    **options: Unpack[Options],
) -> Path:
    """Metrics along the polygonal path through saved states; α runs from 0 to len(states) − 1.

    Args:
        between: points per segment; 1 evaluates the states only.
    """
    if len(states) < 2 or between < 1:
        raise ValueError(f"a trajectory needs 2 states and 1 point per segment, got {len(states)} and {between}")
    subject = Subject(model, options.get("replicas"))
    taken = [subject.take(state, f"state {i}") for i, state in enumerate(states)]
    where = torch.linspace(0, len(states) - 1, (len(states) - 1) * between + 1, dtype=torch.float64)

    def coefficients(alpha: float) -> Tensor:
        distance = (torch.arange(len(states), dtype=torch.float64) - alpha).abs()
        return (1 - distance).clamp_min(0)

    points = mix(taken, torch.stack([coefficients(float(alpha)) for alpha in where]))
    names, (values,) = Sweep(subject, [points], evaluate, **options).run(_labels(where))
    return Path(where, values, names, points, coefficients)


class Layers(Mapping[str, Path]):
    """One path per block of the network, in order."""

    def __init__(self, paths: dict[str, Path], blocks: dict[str, list[str]]) -> None:
        self._paths = paths
        self.blocks = blocks

    def __getitem__(self, block: str) -> Path:
        return self._paths[block]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def barriers(self, metric: str | None = None, **rule: float) -> list[str]:
        """The blocks whose path has a barrier; ``rule`` as for :func:`classify`."""
        return [name for name, path in self.items() if path.profile(metric, **rule) == "barrier"]

    def __repr__(self) -> str:
        width = max(map(len, self))
        return "\n".join(f"{name:<{width}}  {path.profile()!r}" for name, path in self.items())

    def plot(self, axes: Any = None, metric: str | None = None) -> Any:
        """All blocks in one figure."""
        axes = _axes(axes)
        for name, path in self.items():
            path.plot(axes, metric, label=name)
        axes.legend()
        return axes


def layerwise(
    model: nn.Module,
    start: State | nn.Module,
    end: State | nn.Module,
    evaluate: Evaluate,
    blocks: Blocks = "auto",
    alphas: int | Sequence[float] | Tensor = 51,
    *,
    separate_statistics: bool = False,
    **options: Unpack[Options],
) -> Layers:
    """For every block ℓ, metrics along the line on which it alone moves and all else stays at ``end`` (6.2).

    The data is read once for all blocks, and the layers in front of a block are run once for all α.

    Args:
        blocks: "auto", name patterns, or {label: patterns}; see :func:`blocks_of`.
        separate_statistics: give batch-norm running statistics separate paths, "… statistics", beside those of the
            block's parameters (Fig. 6.18), instead of moving them with the block.
    """
    where = _alphas(alphas)
    subject = Subject(model, options.get("replicas"))
    ends = [subject.take(start, "start"), subject.take(end, "end")]
    named = blocks_of(subject.model, blocks)
    if separate_statistics:
        named = _separated(named, subject.model)
    lines = [mix(ends, _pairs(where), set(names)) for names in named.values()]
    names, values = Sweep(subject, lines, evaluate, **options).run(_labels(where))
    paths = {
        label: Path(where, value, names, line, _between)
        for label, value, line in zip(named, values, lines, strict=True)
    }
    return Layers(paths, named)


def _separated(named: dict[str, list[str]], model: nn.Module) -> dict[str, list[str]]:
    statistics = {f"{prefix}{name}" for prefix, norm in batch_norms(model).items() for name, _ in norm.named_buffers()}
    split: dict[str, list[str]] = {}
    for label, names in named.items():
        split[label] = [name for name in names if name not in statistics]
        if moving := [name for name in names if name in statistics]:
            split[f"{label} statistics"] = moving
    return {label: names for label, names in split.items() if names}


def _line(
    subject: Subject,
    start: dict[str, Tensor],
    end: dict[str, Tensor],
    where: Tensor,
    constraints: Constraints,
    along: str,
) -> tuple[Points, Tensor | None]:
    if along not in ("line", "geodesic"):
        raise ValueError(f"along must be 'line' or 'geodesic', got {along!r}")
    points = mix([start, end], _pairs(where))
    spaces = constrained(subject, constraints)
    if along == "geodesic":
        if not spaces:
            raise ValueError("a geodesic needs constraints: give the optimizer, or {name pattern: constraint}")
        points.curves = geodesics(subject, spaces, start, end)
        for name in spaces:
            points.anchors.pop(name, None)
            points.fixed.pop(name, None)
    if not spaces:
        return points, None
    off = departure(subject, spaces, points)
    if along == "line" and float(off.max()) > 1e-4:
        warnings.warn(
            f"the straight line leaves the manifold of {', '.join(list(spaces)[:3])}{' …' if len(spaces) > 3 else ''}: "
            f"up to {float(off.max()):.3g} away at α = {float(where[off.argmax()]):.3g}; along='geodesic' stays on it",
            stacklevel=3,
        )
    return points, off


def _alphas(alphas: int | Sequence[float] | Tensor) -> Tensor:
    if isinstance(alphas, int):
        if alphas < 3:
            raise ValueError(f"a path needs at least 3 points, got {alphas}")
        return torch.linspace(0, 1, alphas, dtype=torch.float64)
    where = torch.as_tensor(alphas, dtype=torch.float64).cpu()
    if where.ndim != 1 or len(where) < 3 or not bool((where.diff() > 0).all()):
        raise ValueError("alphas must be a number of points, or at least 3 increasing values")
    return where


def _between(alpha: float) -> Tensor:
    return torch.tensor([1 - alpha, alpha], dtype=torch.float64)


def _pairs(where: Tensor) -> Tensor:
    return torch.stack([1 - where, where], 1)


def _labels(where: Tensor) -> list[str]:
    return [f"α = {float(alpha):.3g}" for alpha in where]
