"""Grouped bar charts, as in the thesis's sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...run import Array


def grouped(panel: Any, groups: Sequence[str], series: Mapping[str, Sequence[Array]], legend: str) -> None:
    """One group of bars per label, one bar per series: means over runs in per cent, with standard errors.

    ``series[name][g]`` holds the runs of group g.
    """
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = np.arange(len(groups)) + (number - (len(series) - 1) / 2) * width
        means = [100 * v.mean() for v in values]
        errors = [100 * v.std(ddof=1) / np.sqrt(len(v)) if len(v) > 1 else 0.0 for v in values]
        panel.bar(places, means, width, yerr=errors, label=name, error_kw={"linewidth": 0.8, "capsize": 1.5})
    panel.set_xticks(range(len(groups)), groups)
    panel.set(ylabel="test accuracy (%)", ylim=(45, 101))
    if len(series) > 1:
        panel.legend(
            title=legend, frameon=False, fontsize=8, title_fontsize=8, ncols=min(3, len(series)), loc="upper left"
        )
