"""Arithmetic on lists of tensors whose scalar may be a float, a 0-dim tensor or one value per replica.

Floats take torch's multi-tensor kernels. A tensor scalar (an ``lr`` on the device, a compiled
step's coefficient, a value per leading index) is broadcast over the trailing dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

Scalar = float | Tensor
Tensors = list[Tensor]


def spread(a: Tensor, like: Tensor) -> Tensor:
    """View a scalar of shape ``(R, …)`` so that it broadcasts against ``like`` of shape ``(R, …, *block)``."""
    return a.reshape(a.shape + (1,) * (like.ndim - a.ndim)) if a.ndim else a


def divided(x: Tensor, a: Scalar, otherwise: Tensor | float = 0.0) -> Tensor:
    """x/a, and ``otherwise`` where a is 0."""
    return torch.where(a == 0, otherwise, x / a) if isinstance(a, Tensor) else x / a


def _singly() -> bool:
    """Whether a compiler reads along, which wants to see tensor by tensor.

    It joins passes over single tensors by itself. Multi-tensor operations it turns into one launch
    whose blocks run in any order, and torch 2.11 was seen to put one into it that reads what another writes.
    """
    return torch.compiler.is_compiling()


def computed_once(columns: Tensors) -> Tensors:
    """The same numbers, one a row, where a compiled pass would otherwise compute them again for every few entries.

    The compiler's C++ back end writes a row's sines into the loop over its entries; a concatenation it keeps in memory.
    """
    if not torch.compiler.is_compiling() or columns[0].is_cuda:
        return columns
    return list(torch.cat(columns, -1).chunk(len(columns), -1))


def _over(a: Scalar, x: Tensor) -> Scalar:
    return spread(a, x) if isinstance(a, Tensor) else a


def add_scaled_(ys: Tensors, xs: Tensors, a: Scalar) -> None:
    """y += a·x."""
    if not ys:
        return
    if isinstance(a, Tensor) or _singly():
        for y, x in zip(ys, xs, strict=True):
            y.add_(x * _over(a, x))
    else:
        torch._foreach_add_(ys, xs, alpha=a)


def plus_scaled(ys: Tensors, xs: Tensors, a: Scalar) -> Tensors:
    """y + a·x, as new tensors."""
    if isinstance(a, Tensor) or _singly():
        return [y + x * _over(a, x) for y, x in zip(ys, xs, strict=True)]
    return list(torch._foreach_add(ys, xs, alpha=a))


def scaled(xs: Tensors, a: Scalar) -> Tensors:
    """a·x, as new tensors."""
    if isinstance(a, Tensor) or _singly():
        return [x * _over(a, x) for x in xs]
    return list(torch._foreach_mul(xs, a))


def add_product_(ys: Tensors, us: Tensors, xs: Tensors, a: Scalar) -> None:
    """y += a·u·x."""
    if isinstance(a, Tensor) or _singly():
        for y, u, x in zip(ys, us, xs, strict=True):
            y.add_(u * x * _over(a, x))
    else:
        torch._foreach_addcmul_(ys, us, xs, value=a)


def scale_(xs: Tensors, a: Scalar) -> None:
    """x *= a."""
    if not xs:
        return
    if isinstance(a, Tensor) or _singly():
        for x in xs:
            x.mul_(_over(a, x))
    else:
        torch._foreach_mul_(xs, a)


def copy_(ys: Tensors, xs: Tensors) -> None:
    """y ← x."""
    if _singly():
        for y, x in zip(ys, xs, strict=True):
            y.copy_(x)
    else:
        torch._foreach_copy_(ys, xs)


def sum_of_squares(xs: Tensors, keep: int = 0) -> Tensor:
    """Σ x², over everything but the first ``keep`` dimensions."""
    parts = [x.square().sum(dim=tuple(range(keep, x.ndim)), dtype=x.dtype) for x in xs]
    return torch.stack(parts).sum(0)
