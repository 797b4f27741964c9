"""Statistics of training curves, one value per run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...run import Array, Fit

HEADINGS = {"train_loss": "train loss", "test_loss": "test loss", "test_accuracy": "test accuracy %"}


def late_mean(fit: Fit, metric: str = "test_accuracy") -> Array:
    """(runs,) mean over the last tenth of training, since a metric fluctuates from step to step."""
    late = fit.steps > 0.9 * fit.steps[-1]
    mean: Array = fit.curves[metric][late].mean(0)
    return mean


def mean_over_training(fit: Fit, metric: str = "test_accuracy") -> Array:
    """(runs,) mean over all evaluations after the start; fast methods have a higher one."""
    mean: Array = fit.curves[metric][1:].mean(0)
    return mean


def steps_to(fit: Fit, level: float, metric: str = "test_accuracy") -> Array:
    """(runs,) the first evaluated step at ``level`` or above; NaN for runs that never reach it."""
    reached = fit.curves[metric] >= level
    first = fit.steps[reached.argmax(0)].astype(float)
    return np.where(reached.any(0), first, np.nan)


def best_arm(fits: Mapping[str, Fit], metric: str = "valid_accuracy") -> str:
    """The arm with the highest mean final value: rivals are compared at their best setting on validation data."""
    return max(fits, key=lambda arm: float(np.nanmean(fits[arm].final(metric))))
