"""Where the eigenvalues of a step leave the unit circle, for the figures of thesis 1.2.3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....multirate.resonance import Matrix, eigenvalues, spectral_radius
from ...run import Array

Step = Callable[[float], Matrix]
OMEGA, OMEGA_SQUARED = 3.0, 10.0
ROUNDING = 1e-7  # double eigenvalues are accurate to half the digits


def spectra(step: Step, times: Array) -> Array:
    """(times, n) eigenvalues of the step by argument."""
    found: Array = np.array([eigenvalues(step(float(h))) for h in times])
    return found


def unstable_bands(step: Step, times: Array) -> list[tuple[float, float]]:
    """The intervals of h in which |λ| > 1, found on a grid and refined by bisection; the last may be cut off."""
    unstable = np.abs(spectra(step, times)).max(1) > 1 + ROUNDING
    changes = np.flatnonzero(unstable[1:] != unstable[:-1])
    edges = [_edge(step, float(times[i]), float(times[i + 1])) for i in changes]
    if unstable[0]:
        edges.insert(0, float(times[0]))
    if unstable[-1]:
        edges.append(float(times[-1]))
    return list(zip(edges[::2], edges[1::2], strict=True))


def _edge(step: Step, low: float, high: float) -> float:
    """Where stability changes between two steps, one of which is stable."""
    before = spectral_radius(step(low)) > 1 + ROUNDING
    for _ in range(60):
        middle = (low + high) / 2
        if (spectral_radius(step(middle)) > 1 + ROUNDING) == before:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def shade(panel: Any, bands: list[tuple[float, float]], scale: float = 1.0) -> None:
    """Unstable steps in the background of a panel whose axis shows h·scale."""
    for number, (low, high) in enumerate(bands):
        label = "unstable" if number == 0 else None
        panel.axvspan(low * scale, high * scale, color="tab:red", alpha=0.12, linewidth=0, label=label)


def draw_arguments(panel: Any, times: Array, values: Array) -> None:
    """Arguments of all eigenvalues against h."""
    for i in range(values.shape[1]):
        panel.plot(times, np.angle(values[:, i]), ".", markersize=1.5, color="tab:blue")
    panel.set(xlabel="step h", ylabel="argument of λ", yticks=[-np.pi, 0, np.pi], yticklabels=["−π", "0", "π"])


def least_gap(values: Array) -> Array:
    """(times,) distance of the two arguments in the upper half plane; 0 where eigenvalues meet."""
    upper = np.sort(np.angle(values), 1)[:, 2:]
    gap: Array = upper[:, 1] - upper[:, 0]
    return gap
