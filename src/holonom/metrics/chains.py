"""Mixing of a chain: effective sample size, integrated autocorrelation time and R̂ of recorded draws (1.3.2.4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def effective_sample_size(draws: Any) -> Array:
    """Bulk ESS of every component of (chains, draws, *shape); a :class:`holonom.Recorder`'s ``draws`` fit."""
    return _each(draws, "ess")


def autocorrelation_time(draws: Any) -> Array:
    """IAT (1.67) in draws, chains × draws / ESS: how many draws are worth one independent draw."""
    found = _array(draws)
    result: Array = found.shape[0] * found.shape[1] / _each(found, "ess")
    return result


def potential_scale_reduction(draws: Any) -> Array:
    """Rank-normalised split R̂ of every component; near 1 if the chains agree. One chain is split in two."""
    found = _array(draws)
    if len(found) == 1:
        half = found.shape[1] // 2
        found = np.concatenate([found[:, :half], found[:, half : 2 * half]])
    return _each(found, "rhat")


def _array(draws: Any) -> Array:
    found = np.asarray(draws.detach().cpu() if isinstance(draws, torch.Tensor) else draws, dtype=np.float64)
    if found.ndim < 2 or found.shape[1] < 8:
        raise ValueError(f"draws must be (chains, draws, *shape) with at least 8 draws, got {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("draws hold NaN or infinity")
    return found


def _each(draws: Any, what: str) -> Array:
    try:
        from arviz_stats.base.array import array_stats
    except ImportError:
        raise ImportError("mixing diagnostics need arviz-stats: pip install 'holonom[diagnostics]'") from None
    found = _array(draws)
    flat = found.reshape(*found.shape[:2], -1)
    function = getattr(array_stats, what)
    constant = flat.std(axis=(0, 1)) == 0  # its autocorrelation is not defined
    values = [np.nan if c else float(function(flat[..., i], chain_axis=0, draw_axis=1)) for i, c in enumerate(constant)]
    result: Array = np.array(values).reshape(found.shape[2:])
    return result
