"""Values and distributions of weights during a run (Figs 3.6–3.8)."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn


class WeightHistory:
    """Copies of chosen parameters at chosen times.

    >>> history = WeightHistory(model, ["*.weight"])
    >>> for step in range(10_001):
    ...     if step in (50, 1000, 10_000):
    ...         history(step)
    >>> edges, counts = history.histogram("0.weight", bins=50)     # counts: (times, bins)

    Args:
        model: the network (or an ensemble: all replicas go into one histogram, Fig. 3.8).
        patterns: names of the parameters to record.
    """

    def __init__(self, model: nn.Module, patterns: str | Sequence[str] = "*") -> None:
        wanted = [patterns] if isinstance(patterns, str) else patterns
        self._parameters = {
            name: p for name, p in model.named_parameters() if any(fnmatchcase(name, pattern) for pattern in wanted)
        }
        if not self._parameters:
            raise ValueError(
                f"{list(wanted)} names no parameter; there are {[n for n, _ in model.named_parameters()][:8]}"
            )
        self.steps: list[int] = []
        self._copies: dict[str, list[Tensor]] = {name: [] for name in self._parameters}

    def __call__(self, step: int) -> None:
        """Copy the present weights."""
        self.steps.append(step)
        for name, p in self._parameters.items():
            self._copies[name].append(p.detach().cpu().clone())

    def values(self, name: str) -> Tensor:
        """(times, *shape)."""
        if name not in self._copies:
            raise KeyError(f"{name!r} is not recorded; there are {', '.join(self._copies)}")
        if not self.steps:
            raise ValueError("nothing was recorded yet; call the history with the number of the step")
        return torch.stack(self._copies[name])

    def histogram(self, name: str, bins: int = 50, limits: tuple[float, float] | None = None) -> tuple[Tensor, Tensor]:
        """Edges (bins + 1,) and counts (times, bins) with the same bins at all times."""
        values = self.values(name).double().flatten(1)
        low, high = limits or (float(values.min()), float(values.max()))
        low, high = (low, high) if low < high else (low - 0.5, high + 0.5)
        counts = torch.stack([torch.histc(row, bins, low, high) for row in values])
        return torch.linspace(low, high, bins + 1, dtype=torch.float64), counts

    def near_zero(self, name: str, below: float) -> Tensor:
        """(times,): the share of weights with |w| < below."""
        return (self.values(name).flatten(1).abs() < below).double().mean(1)

    def plot(self, name: str, axes: Any = None, bins: int = 50) -> Any:
        """One outline per time."""
        from ..landscape.path import _axes

        axes = _axes(axes)
        edges, counts = self.histogram(name, bins)
        for step, row in zip(self.steps, counts, strict=True):
            axes.stairs(row, edges, label=f"step {step}")
        axes.set_xlabel(name)
        axes.legend()
        return axes
