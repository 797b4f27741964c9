"""Metrics along a path through weight space, and whether it has a barrier, none, or a plateau (thesis 6.1.3.2)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .points import Points


class BarrierProfile(str):
    """ "barrier", "no barrier" or "plateau", with the numbers that decided.

    Attributes:
        height: of the highest barrier, in units of the metric; 0 if the curve never rises.
        place: α of its top.
        tolerance: a barrier is higher than this, in units of the metric.
        flat: length in α of the longest plateau.
    """

    height: float
    place: float
    tolerance: float
    flat: float

    def __new__(cls, word: str, height: float, place: float, tolerance: float, flat: float) -> BarrierProfile:
        profile = super().__new__(cls, word)
        profile.height, profile.place, profile.tolerance, profile.flat = height, place, tolerance, flat
        return profile

    def __repr__(self) -> str:
        return (
            f"<{self}: height {self.height:.4g} at α = {self.place:.3g}, tolerance {self.tolerance:.3g}, "
            f"longest plateau {self.flat:.3g}>"
        )


def classify(
    alphas: Tensor, values: Tensor, tolerance: float = 0.02, flatness: float = 0.1, length: float = 0.5
) -> BarrierProfile:
    r"""Whether one curve has a barrier, none, or a plateau.

    A *barrier* is a maximum that is higher than points on both sides; its height is the smaller of the two rises,

    .. math:: \max_β \min\big( L(β) - \min_{α<β} L(α), \; L(β) - \min_{γ>β} L(γ) \big).

    Where the path ends at its lowest value, as from an initial to a trained state, this is the largest rise
    along the path, so "no barrier" is the thesis's monotone decay. A *plateau* has no barrier, but stays
    within ``flatness`` of one level in the upper half of the values for ``length`` of the path.

    Args:
        alphas: (P,), increasing.
        values: (P,).
        tolerance: a barrier must be higher than this share of the curve's range, max − min; or of a twentieth of its
            largest value, if the range is smaller, because ripples on a flat line are no barriers.
        flatness: how far a plateau may vary, as the same kind of share.
        length: how much of the path a plateau must cover.
    """
    x, y = alphas.double(), values.double()
    if x.ndim != 1 or x.shape != y.shape or len(x) < 3:
        raise ValueError(f"a profile needs at least 3 points of one curve, got {tuple(x.shape)} and {tuple(y.shape)}")
    rise = torch.minimum(y - y.cummin(0).values, y - y.flip(0).cummin(0).values.flip(0))
    top = int(rise.argmax())
    spread = max(float(y.max() - y.min()), float(y.abs().max()) / 20)
    height, limit = float(rise[top]), tolerance * spread
    flat = _longest_plateau(x, y, float(y.max()) - spread / 2, flatness * spread)
    enough = flat >= length * float(x[-1] - x[0])
    word = "barrier" if height > limit else "plateau" if enough else "no barrier"
    return BarrierProfile(word, height, float(x[top]), limit, flat)


def _longest_plateau(x: Tensor, y: Tensor, floor: float, band: float) -> float:
    """Length of the longest stretch above ``floor`` whose values differ by at most ``band``."""
    longest, start = 0.0, 0
    for end in range(len(y)):
        if y[end] < floor:
            start = end + 1
            continue
        while float(y[start : end + 1].max() - y[start : end + 1].min()) > band:
            start += 1
        longest = max(longest, float(x[end] - x[start]))
    return longest


class Path:
    """Metrics along a path.

    Attributes:
        alphas: (P,), where the path was evaluated.
        values: (metrics, P), or (metrics, replicas, P) for ensembles; float64.
        metrics: the rows' names.
        departure: (P,), how far the path is from the manifold of constrained parameters, or None.
    """

    def __init__(
        self,
        alphas: Tensor,
        values: Tensor,
        metrics: Sequence[str],
        points: Points,
        coefficients: Callable[[float], Tensor],
        departure: Tensor | None = None,
    ) -> None:
        self.alphas = alphas
        self.values = values
        self.metrics = tuple(metrics)
        self.departure = departure
        self._points = points
        self._coefficients = coefficients

    def __getitem__(self, metric: str) -> Tensor:
        """One metric's row: (P,) or (replicas, P)."""
        return self.values[self._row(metric)]

    def _row(self, metric: str | None) -> int:
        if metric is None:
            return 0
        if metric not in self.metrics:
            raise KeyError(f"{metric!r} was not measured; there are {', '.join(self.metrics)}")
        return self.metrics.index(metric)

    def profile(self, metric: str | None = None, **rule: float) -> BarrierProfile:
        """:func:`classify` for one metric (by default the first), lower meaning better; averaged over replicas."""
        curve = self.values[self._row(metric)]
        return classify(self.alphas, curve if curve.ndim == 1 else curve.mean(0), **rule)

    def profiles(self, metric: str | None = None, **rule: float) -> list[BarrierProfile]:
        """:meth:`profile` for every replica."""
        curves = self.values[self._row(metric)].reshape(-1, len(self.alphas))
        return [classify(self.alphas, curve, **rule) for curve in curves]

    @property
    def shape(self) -> BarrierProfile:
        """Deprecated: :meth:`profile`."""
        _deprecated("Path.shape", "Path.profile()")
        return self.profile()

    @property
    def shapes(self) -> list[BarrierProfile]:
        """Deprecated: :meth:`profiles`."""
        _deprecated("Path.shapes", "Path.profiles()")
        return self.profiles()

    def classify(self, metric: str | None = None, **rule: float) -> BarrierProfile:
        """Deprecated: :meth:`profile`."""
        _deprecated("Path.classify()", "Path.profile()")
        return self.profile(metric, **rule)

    def state(self, alpha: float) -> dict[str, Tensor]:
        """The state at any α of the path, as a state_dict in new memory."""
        return self._points.state(self._coefficients(alpha))

    def __repr__(self) -> str:
        first, last = (float(self.values[0, ..., i].mean()) for i in (0, -1))
        size = f"{len(self.alphas)} points" + (f", {self.values.shape[1]} replicas" if self.values.ndim == 3 else "")
        off = ""
        if self.departure is not None:
            off = f", up to {float(self.departure.max()):.3g} off the constraints' manifold"
        return f"Path({size}, {self.metrics[0]} {first:.4g} → {last:.4g}, {self.profile()!r}{off})"

    def plot(self, axes: Any = None, metric: str | None = None, **style: Any) -> Any:
        """Draw one metric over α: the mean over replicas, a band of one standard deviation, a mark on a barrier."""
        axes = _axes(axes)
        name = self.metrics[self._row(metric)]
        curve = self[name]
        mean = curve if curve.ndim == 1 else curve.mean(0)
        (line,) = axes.plot(self.alphas, mean, **style)
        if curve.ndim == 2 and len(curve) > 1:
            sd = curve.std(0)
            axes.fill_between(self.alphas, mean - sd, mean + sd, alpha=0.2, color=line.get_color(), linewidth=0)
        profile = self.profile(metric)
        if profile == "barrier":
            top = int((self.alphas - profile.place).abs().argmin())
            axes.plot(profile.place, float(mean[top]), "v", color=line.get_color())
        axes.set_xlabel("α")
        axes.set_ylabel(name)
        return axes


def _axes(axes: Any) -> Any:
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("plotting needs matplotlib: pip install matplotlib") from None
    return pyplot.subplots()[1]


def _deprecated(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated; write {new}", DeprecationWarning, stacklevel=3)
