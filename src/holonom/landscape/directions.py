"""Directions in weight space: filter-normalised noise, and principal components of a trajectory."""

from __future__ import annotations

import torch
from torch import Tensor

from .states import Subject


def filter_normalised(subject: Subject, state: dict[str, Tensor], seed: int, number: int) -> dict[str, Tensor]:
    """Noise d with ‖d_f‖ = ‖θ_f‖ for every filter f; zero for biases, norms and buffers.

    Without this normalisation a landscape shows how large the weights are, not how sharp the minimum is.
    """
    generator = torch.Generator().manual_seed(2 * seed + number)
    found = {}
    for name, x in state.items():
        parameter = subject.parameters.get(name)
        if parameter is None or parameter.ndim < 2:
            found[name] = torch.zeros_like(x)
            continue
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
        front = 1 if subject.replicas is None else 2
        norm, length = (y.double().flatten(front).norm(dim=front, keepdim=True) for y in (x, noise))
        scaled = noise.flatten(front) * (norm / length.clamp_min(torch.finfo(torch.float64).tiny))
        found[name] = scaled.reshape(x.shape).to(x.dtype)
    return found


def principal_plane(
    subject: Subject, states: list[dict[str, Tensor]]
) -> tuple[list[dict[str, Tensor]], Tensor, Tensor]:
    """Two orthonormal directions, the states' coordinates (S, 2), and their relative off-plane residuals (S,).

    They come from the S × S Gram matrix of the differences to the last state; no covariance of weights is formed.
    """
    names = list(subject.parameters)
    last = states[-1]
    rows = torch.stack([torch.cat([(state[n] - last[n]).double().flatten() for n in names]) for state in states])
    energies, vectors = torch.linalg.eigh(rows @ rows.mT)
    if not float(energies[-2]) > 1e-12 * float(energies[-1]):
        raise ValueError("the states lie on one line (or are all equal) and span no plane; use trajectory()")
    axes = [vectors[:, -k] @ rows / energies[-k].sqrt() for k in (1, 2)]
    marks = torch.stack([rows @ axis for axis in axes], 1)
    distances = rows.norm(dim=1)
    off = (rows - marks @ torch.stack(axes)).norm(dim=1)
    residuals = torch.where(distances > 0, off / distances.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    return [_unflatten(axis, names, last) for axis in axes], marks.cpu(), residuals.cpu()


def _unflatten(vector: Tensor, names: list[str], like: dict[str, Tensor]) -> dict[str, Tensor]:
    sizes = [like[name].numel() for name in names]
    parts = dict(zip(names, torch.split(vector, sizes), strict=True))
    return {
        name: parts[name].reshape(x.shape).to(x.dtype) if name in parts else torch.zeros_like(x)
        for name, x in like.items()
    }
