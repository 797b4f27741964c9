"""Newton iterations for the Lagrange multipliers λ that put a point on c(x) = 0, for a batch of blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from ...errors import ProjectionError
from .jacobian import linearised, solve

MAX_ITERATIONS = 200
DEVICE_ITERATIONS = 12

Value = Callable[[Tensor], Tensor]  # x: (B, d) → c: (B, m)


def along(
    value: Value, target: Tensor, j: Tensor, dtype: torch.dtype, name: str, raises: bool = True
) -> tuple[Tensor, Tensor]:
    """x' = target − Jᵀλ with c(x') = 0 (4.41), and λ; without ``raises``, blocks that have no root are anywhere."""
    multiplier = torch.zeros(*j.shape[:2], 1, dtype=j.dtype, device=j.device)
    x = target

    def newton() -> Tensor:
        nonlocal x, multiplier
        c, here = linearised(value, x)
        change = solve(here @ j.mT, c[:, :, None])
        multiplier = multiplier + change
        x = target - (j.mT @ multiplier)[:, :, 0]
        return torch.div((j.mT @ change).abs().max(), 1 + x.abs().max())

    _converge(newton, target.device, dtype, name, raises)
    return x, multiplier


def nearest(
    value: Value,
    target: Tensor,
    dtype: torch.dtype,
    name: str,
    active: Tensor | None = None,
    margin: Tensor | None = None,
) -> Tensor:
    """The nearest point: x' = target − G(x')ᵀλ with c(x') = 0 (4.42); of ``active`` constraints only, at c = −margin.

    Each round makes one Gauss–Newton step onto the manifold and one along it towards the target.
    How far along follows from how the direction changed in the last round (Barzilai and Borwein),
    which undoes the overshooting of points far outside.
    """
    x = target
    last: tuple[Tensor, Tensor] | None = None

    def towards() -> Tensor:
        nonlocal x, last
        c, j = linearised(value, x)
        if margin is not None:
            c = c + margin
        if active is not None:
            j, c = j * active[:, :, None], c * active
        gram = j @ j.mT
        if active is not None:
            gram = gram + torch.diag_embed(1 - active)
        onto = (j.mT @ solve(gram, c[:, :, None]))[:, :, 0]
        path = target - x
        path = path - (j.mT @ solve(gram, j @ path[:, :, None]))[:, :, 0]
        pace = torch.ones_like(x[:, :1])
        if last is not None:
            moved, turned = x - last[0], last[1] - path
            curvature = (moved * turned).sum(1, keepdim=True) / moved.square().sum(1, keepdim=True)
            pace = torch.where(curvature > 0, 1 / curvature, pace).clamp(0.05, 2.0)
        last = (x, path)
        change = pace * path - onto
        x = x + change
        return torch.div(change.abs().max(), 1 + x.abs().max())

    _converge(towards, target.device, dtype, name)
    return x


def _converge(
    iterate: Callable[[], Tensor], device: torch.device, dtype: torch.dtype, name: str, raises: bool = True
) -> None:
    if device.type != "cpu":  # reading the error would stall the device
        for _ in range(DEVICE_ITERATIONS):
            iterate()
        return
    smallest = float("inf")
    since = 0
    for _ in range(MAX_ITERATIONS if raises else DEVICE_ITERATIONS):
        try:
            change = float(iterate())
        except LinAlgError:
            break
        eps = torch.finfo(dtype).eps if dtype.itemsize >= 4 else 1e-6
        if change <= 2 * eps:
            return
        since = 0 if change < smallest else since + 1
        smallest = min(smallest, change)
        if since > 3 and smallest <= 64 * eps:  # rounding is all that is left
            return
        if raises and not change < 1e6:
            break
    if not raises:
        return
    raise ProjectionError(
        f"the projection onto {name}(q) = 0 has no root in reach of this step: lower lr, or clip the gradient"
    )
