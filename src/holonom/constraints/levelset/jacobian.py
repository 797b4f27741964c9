"""Jacobians G of a user's function, block by block, and the equations with GGᵀ that a projection solves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from ...errors import ProjectionError


def linearised(c: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """c(x): (B, m) and its Jacobian (B, m, d) at x: (B, d), where no block's c depends on another block.

    One backward pass takes the whole batch; a transform of every block (``jacrev``) takes twice as long.
    """
    value: Tensor
    value, back = vjp(lambda x: c(x).to(x.dtype), x)[:2]
    blocks, m = value.shape
    if m == 1:
        return value, back(torch.ones_like(value))[0][:, None]
    each = torch.eye(m, dtype=value.dtype, device=value.device)[:, None, :].expand(m, blocks, m)
    return value, vmap(back)(each)[0].transpose(0, 1)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """a⁻¹b; on a device without the check for a singular a, which would stall it."""
    solution: Tensor = torch.linalg.solve_ex(a, b)[0] if a.device.type != "cpu" else torch.linalg.solve(a, b)
    return solution


def tangent(j: Tensor, pi: Tensor) -> Tensor:
    """Ππ with Π = I − Gᵀ(GGᵀ)⁻¹G, row by row."""
    try:
        normal: Tensor = j.mT @ solve(j @ j.mT, j @ pi[:, :, None])
    except LinAlgError as error:
        raise ProjectionError(
            "a gradient of the constraints vanishes at these weights, or two are parallel, so there is no tangent "
            "space to move in: restore weights where that is not so, or drop a constraint"
        ) from error
    return pi - normal[:, :, 0]


def distance(c: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """From every x to c = 0, by a Gauss–Newton step's length over 1 + |x|: (B, 1). Infinite where there is none."""
    value, j = linearised(c, x)
    multiplier, failed = torch.linalg.solve_ex(j @ j.mT, value[:, :, None])
    back: Tensor = (j.mT @ multiplier)[:, :, 0].norm(dim=1, keepdim=True)
    return back.div_(1 + x.norm(dim=1, keepdim=True)).masked_fill_(failed[:, None] != 0, float("inf"))


def are_dependent(j: Tensor) -> bool:
    """Whether the rows of some block's Jacobian are, to rounding."""
    singular = torch.linalg.svdvals(j.double())
    rounding = max(1e-8, 8 * torch.finfo(j.dtype).eps)
    return bool((singular[:, -1] <= rounding * singular[:, 0].clamp_min(1e-30)).any())
