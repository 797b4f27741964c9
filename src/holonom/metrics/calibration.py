"""Calibration of predicted probabilities: ECE, negative log-likelihood, Brier score."""

from __future__ import annotations

import torch
from torch import Tensor


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    """ECE = Σ_b (n_b/N) |accuracy_b − confidence_b| over ``bins`` equal bins of the largest probability, (lo, hi].

    Args:
        probabilities: (…, N, C), or (…, N) for the probability of class 1; leading dimensions are models.
        labels: (N,) or (…, N) whole numbers.

    Returns:
        (…), one number per model.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    p, y = _checked(probabilities, labels)
    confidence, classes = p.max(-1)
    right = (classes == y).to(p.dtype)
    which = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    gaps = torch.zeros(*p.shape[:-2], bins, dtype=p.dtype, device=p.device)
    gaps.scatter_add_(-1, which, right - confidence)
    return gaps.abs().sum(-1) / p.shape[-2]


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> Tensor:
    """−mean log p(label); infinite if a label has probability 0. Arguments as above."""
    p, y = _checked(probabilities, labels)
    return -p.gather(-1, y[..., None])[..., 0].log().mean(-1)


def brier_score(probabilities: Tensor, labels: Tensor) -> Tensor:
    """mean Σ_c (p_c − [label = c])², between 0 and 2. Arguments as above."""
    p, y = _checked(probabilities, labels)
    hits = torch.nn.functional.one_hot(y, p.shape[-1]).to(p.dtype)
    return (p - hits).square().sum(-1).mean(-1)


def _checked(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(…, N, C) float64 probabilities and (…, N) labels."""
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise ValueError("labels must be whole numbers, the numbers of classes")
    p = probabilities.double()
    y = labels.long()
    if p.ndim == y.ndim:
        p = torch.stack([1 - p, p], -1)
    if p.ndim < 2 or p.shape[-2] == 0:
        raise ValueError(f"probabilities must be (…, N, C) with at least one example, got {tuple(probabilities.shape)}")
    if p.shape[-1] < 2:
        raise ValueError("one class only: probabilities need at least two columns; nothing can be miscalibrated")
    if y.shape[-1] != p.shape[-2]:
        raise ValueError(f"{y.shape[-1]} labels for {p.shape[-2]} examples")
    y = y.expand(p.shape[:-1])
    if not bool(((p >= 0) & (p <= 1 + 1e-6)).all()) or float((p.sum(-1) - 1).abs().max()) > 1e-3:
        raise ValueError("probabilities must lie in [0, 1] and add up to 1; apply softmax to logits first")
    if int(y.min()) < 0 or int(y.max()) >= p.shape[-1]:
        raise ValueError(f"labels run from {int(y.min())} to {int(y.max())}, but there are {p.shape[-1]} classes")
    return p, y
