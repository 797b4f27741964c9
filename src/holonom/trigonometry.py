"""Sines, cosines and angles in turns (u = φ/2π), by polynomials where a compiler fuses them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .lists import Tensors, scale_

# Odd minimax polynomial of sin(2πw) on |w| ≤ ¼, relative error 5e-9: far below float32's rounding.
_SINE = (6.283185273790778, -41.34167747838841, 81.6022312424958, -76.57499217630041, 39.71091809955536)
# Odd minimax polynomial of arctan(z) on |z| ≤ 1, relative error 1.5e-8.
_ARCTAN = (
    0.9999999847657308, -0.33333073344527875, 0.19992619380566015, -0.1420364437722437, 0.1064093367270372,
    -0.07504293783273555, 0.04269151030562076, -0.01606862342423826, 0.002849888232780736,
)  # fmt: skip


def sines(angles: Tensors, size: float = 1.0) -> Tensors:
    """size·sin(2πu) for |u| ≤ ½."""
    if torch.compiler.is_compiling():
        return [_polynomial(_mirrored(u), size) for u in angles]
    values = list(torch._foreach_sin(torch._foreach_mul(angles, 2 * math.pi)))
    if size != 1.0:
        scale_(values, size)
    return values


def cosines(angles: Tensors) -> Tensors:
    """cos(2πu) for |u| ≤ ½."""
    if torch.compiler.is_compiling():
        return [_polynomial(0.25 - u.abs()) for u in angles]
    return list(torch._foreach_cos(torch._foreach_mul(angles, 2 * math.pi)))


def turns(y: Tensor, x: Tensor) -> Tensor:
    """atan2(y, x)/2π."""
    if not torch.compiler.is_compiling() or y.dtype == torch.float64:
        return torch.atan2(y, x) / (2 * math.pi)
    # In the first octant by the polynomial, elsewhere by mirrors: a division and a dozen multiply-adds, half the time
    # of the library's.
    up, right = y.abs(), x.abs()
    z = torch.minimum(up, right) / torch.maximum(up, right).clamp_min(torch.finfo(y.dtype).tiny)
    turned = _horner(z * z, _ARCTAN) * z * (0.5 / math.pi)
    turned = torch.where(up > right, 0.25 - turned, turned)
    turned = torch.where(x < 0, 0.5 - turned, turned)
    return torch.where(y < 0, -turned, turned)


def _mirrored(u: Tensor) -> Tensor:
    """The angle within a quarter turn of zero that has the same sine, exactly."""
    # Not u.clamp(), whose compiled code looks for NaN: a third of the time of a step on circles.
    beyond = torch.relu(u - 0.25) - torch.relu(-0.25 - u)
    return (u - beyond) - beyond


def _polynomial(w: Tensor, size: float = 1.0) -> Tensor:
    """size·sin(2πw) for |w| ≤ ¼; in a fused float32 pass five multiply-adds beat the library's sine threefold."""
    if w.dtype == torch.float64:
        return size * torch.sin(2 * math.pi * w)
    return _horner(w * w, [size * coefficient for coefficient in _SINE]) * w


def _horner(y: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Σ cₖ yᵏ."""
    total = torch.full_like(y, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * y + coefficient
    return total
