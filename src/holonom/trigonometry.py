"""Sines and cosines of multiples of π, by a polynomial where a compiler fuses it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .lists import Tensors

# Odd minimax polynomial of sin(πw) on |w| ≤ ½, relative error 5e-9: far below float32's rounding.
_SINE = (3.141592636895389, -5.1677096847985515, 2.550069726327994, -0.598242126377347, 0.07756038691319406)


def sines(angles: Tensors) -> Tensors:
    """sin(πu) for |u| ≤ 1."""
    if torch.compiler.is_compiling():
        return [_polynomial(2 * u.clamp(-0.5, 0.5) - u) for u in angles]  # beyond a quarter turn: mirrored, exactly
    return list(torch._foreach_sin(torch._foreach_mul(angles, math.pi)))


def cosines(angles: Tensors) -> Tensors:
    """cos(πu) for |u| ≤ 1."""
    if torch.compiler.is_compiling():
        return [_polynomial(0.5 - u.abs()) for u in angles]
    return list(torch._foreach_cos(torch._foreach_mul(angles, math.pi)))


def _polynomial(w: Tensor) -> Tensor:
    """sin(πw) for |w| ≤ ½; in a fused float32 pass five multiply-adds beat the library's sine threefold."""
    if w.dtype == torch.float64:
        return torch.sin(math.pi * w)
    y = w * w
    total = torch.full_like(w, _SINE[-1])
    for coefficient in reversed(_SINE[:-1]):
        total = total * y + coefficient
    return total * w
