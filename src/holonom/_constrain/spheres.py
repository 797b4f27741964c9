"""Blocks of a fixed or bounded norm after an optimizer's step.

:func:`hold_` is all arithmetic of a step. It takes lists of tensors whose last dimension is a block, reads and writes
each in place, and keeps what is one number a block of all of them in one vector. Nothing is read back from the device.
On a GPU kernels do the same in few launches (:mod:`holonom._backends.triton.hold`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._step.integrate import Scalar
from .._step.run import KERNEL_DEVICES
from .._torch import has_triton

LONG = 4096  # entries of a block whose squares are summed in stages: on a CPU one sum loses digits
MAX_RATIO = 1e15  # of a weight to its move: beyond it the angle of a step is 0
AT_BOUND = 8  # roundings within which a bound is active
LEFT = 1e-3  # of a decay that is left out: what a step has less of besides is the rounding of sums
ON_SPHERE = 4  # roundings within which a block has its norm, and stays as it is


class PerBlock:
    """One number a block of several tensors, as one vector: ``norms`` and ``columns`` are its parts, as views."""

    def __init__(self, blocks: Sequence[Tensor]) -> None:
        shapes = [x.shape[:-1] for x in blocks]
        self.vector = blocks[0].new_empty(sum(shape.numel() for shape in shapes))
        parts = torch.split(self.vector, [shape.numel() for shape in shapes])
        self.norms = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        self.columns = [norm.unsqueeze(-1) for norm in self.norms]

    def measure(self, xs: Iterable[Tensor]) -> Tensor:
        """The norm of every block."""
        for x, norm in zip(xs, self.norms, strict=True):
            norm_of(x, norm)
        return self.vector


class Workspace:
    """The vectors that a step of some tensors needs; made again when their blocks change."""

    def __init__(self, blocks: Sequence[Tensor]) -> None:
        self.before, self.after, self.moved, self.weight = (PerBlock(blocks) for _ in range(4))
        self.table: Any = None  # of the GPU's kernels


def norm_of(x: Tensor, out: Tensor) -> None:
    """The norms of the last dimension."""
    size = x.shape[-1]
    part = math.gcd(size, LONG)
    if size <= LONG:
        torch.linalg.vector_norm(x, dim=-1, out=out)
    elif part >= 32 and x.stride(-1) == 1:
        norm_of(torch.linalg.vector_norm(x.view(*x.shape[:-1], size // part, part), dim=-1), out)
    else:
        torch.sum(x.square(), -1, out=out).sqrt_()


def hold_(
    update: str,
    bounded: bool,
    new: Sequence[Tensor],
    old: Sequence[Tensor],
    radius: Scalar,
    lr: Scalar,
    dropped: Scalar,
    work: Workspace,
    rounding: float,
) -> None:
    r"""Move every block w' that an optimizer made of w to its sphere, ‖w‖ = r, or into its ball, ‖w‖ ≤ r.

    The new block is n·r/‖n‖ (of a ball, where ‖n‖ > r) with Δ = w' − w and

    - plain:    n = w'
    - tangent:  n = w' − w(w·Δ)/‖w‖²; of a ball only where ‖w‖ = r and w·Δ > 0
    - angular:  n = w + lr·r·Δ/‖Δ‖, that is, along w' + (‖Δ‖/(lr·r) − 1)w

    Where Δ = 0 the block stays as it is, bit for bit; where Δ is only a decay that is left out, it keeps its direction.

    Args:
        update: "plain", "tangent" or "angular".
        bounded: a ball.
        new: w', overwritten.
        old: w; not needed by "plain", unless something is dropped.
        radius: r, a number or a vector of all blocks.
        lr: of "angular".
        dropped: lr·λ of a weight decay that is left out: Δ + lr·λ·w takes the place of Δ.
        work: of these blocks.
        rounding: ``finfo.eps`` of the parameters.
    """
    drops = is_dropped(dropped)
    smallest = resolution(dropped, rounding)
    eps = torch.finfo(new[0].dtype).eps
    if new[0].device.type in KERNEL_DEVICES and has_triton():
        from .._backends.triton import hold

        if hold.fits(new, old, (lr, dropped)):
            work.table = work.table or hold.Table(new)
            limits = (ON_SPHERE * eps, AT_BOUND * eps, MAX_RATIO, smallest)
            hold.hold_(update, bounded, new, old, radius, lr, dropped, work.table, limits)  # type: ignore[arg-type]
            return
    if update == "plain" and not drops:
        norm = work.after.measure(new)
        off = norm > radius * (1 + ON_SPHERE * eps) if bounded else (norm - radius).abs() > ON_SPHERE * eps * radius
        _scale_(new, torch.where(off & (norm > 0), radius / norm, 1.0), work)
        return
    moved = work.moved.measure(a - b for a, b in zip(new, old, strict=True))
    still = moved == 0
    weight = dropped * torch.ones_like(moved)
    if update == "tangent":
        before, after = work.before.measure(old), work.after.measure(new)
        weight = _normal_part(before, after, moved)
        if bounded:
            active = (before >= radius * (1 - AT_BOUND * eps)) & (weight > 0)
            weight = torch.where(active, weight, 0.0)
        weight = -weight
    if drops:
        moved = work.moved.measure(a - b * (1 - dropped) for a, b in zip(new, old, strict=True))
    if update == "angular":
        weight = (moved / (lr * radius)).clamp(max=MAX_RATIO) - (1 - dropped)
    if drops:
        weight = torch.where(moved <= smallest * radius, MAX_RATIO, weight)
    work.weight.vector.copy_(torch.where(still, 0.0, weight))
    for a, b, column in zip(new, old, work.weight.columns, strict=True):
        a.addcmul_(b, column)
    norm = work.after.measure(new)
    outside = norm > radius if bounded else norm > 0
    _scale_(new, torch.where(outside & ~still, radius / norm, 1.0), work)


def is_dropped(dropped: Scalar) -> bool:
    """Whether there is, or may be, a decay to leave out."""
    return isinstance(dropped, Tensor) or dropped != 0


def resolution(dropped: Scalar, rounding: float) -> Scalar:
    """Of a block's norm: a smaller move is what rounding leaves of a decay that was left out.

    Weights are rounded to the nearest, and are themselves near: the error is below the decay, too.
    """
    least = dropped.clamp(max=rounding) if isinstance(dropped, Tensor) else min(dropped, rounding)
    return least + LEFT * dropped


def _normal_part(before: Tensor, after: Tensor, moved: Tensor) -> Tensor:
    """w·Δ/‖w‖² from ‖w‖, ‖w + Δ‖ and ‖Δ‖. Its rounding only turns into length, which is divided out."""
    square = before.square()
    return (after.square() - square - moved.square()) / (2 * square).clamp_min(torch.finfo(square.dtype).tiny)


def _scale_(new: Sequence[Tensor], scale: Tensor, work: Workspace) -> None:
    work.weight.vector.copy_(scale)
    for x, column in zip(new, work.weight.columns, strict=True):
        x.mul_(column)
