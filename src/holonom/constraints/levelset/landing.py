"""Landing on a level set: the nearest point with g(q) = 0 and h(q) < 0; bounds that are in the way join one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import ConstraintError, ProjectionError
from ..base import inset
from .projection import Value, nearest

MARGIN = 1e-3  # at ξ = 0 the tangent is pure slack and a block feels no force: what lands lands at h = −margin


def inside(dtype: torch.dtype) -> float:
    """How far h(q) stays below 0: sixteen roundings, so that none takes it above."""
    return 16 * torch.finfo(dtype).eps


def violated(value: Tensor, x: Tensor, bounds: Tensor, dtype: torch.dtype) -> Tensor:
    """Which constraints ask for a move: equalities off 0, and bounds (h ≤ 0) that are reached."""
    rounding = 8 * torch.finfo(dtype).eps * (1 + x.norm(dim=1, keepdim=True))
    reached = torch.ge(value, -rounding.clamp_max(MARGIN / 2))
    return torch.where(bounds, reached, torch.gt(value.abs(), rounding))


def land(value: Value, start: Tensor, outside: Tensor, bounds: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """The nearest points to the blocks that are ``outside``; the others as they are.

    Equalities hold from the start. Bounds join them, at h = −margin, where the point found so far is beyond.
    """
    margin = inset(MARGIN, dtype) * bounds.to(start.dtype)
    active = (~bounds).expand(len(start), -1)
    for _ in range(1 + int(bounds.sum())):
        found = nearest(value, start, dtype, name, active.to(start.dtype), margin)
        x = torch.where(outside[:, None], found, start)
        beyond = violated(value(x), x, bounds, torch.float32) & bounds & ~active & outside[:, None]
        if not bool(beyond.any()):
            return x
        active = active | beyond
    raise ProjectionError("no point satisfies all bounds that are in the way")


def refuse_undefined(value: Tensor, jacobian: Tensor, function: str, name: str) -> None:
    """Raise where c: (B, m) or its Jacobian: (B, m, d) is NaN or infinite."""
    for what, found, hint in (
        (function, value, ": initialise where it is defined"),
        (
            f"the gradient of {function}",
            jacobian.flatten(1),
            ", as that of a norm may be at 0: initialise elsewhere, or write the function without the root",
        ),
    ):
        bad = ~found.isfinite().all(1)
        if bool(bad.any()):
            where = f" (block {int(bad.nonzero()[0])} of {len(bad)})" if len(bad) > 1 else ""
            raise ConstraintError(f"LevelSet on {name}: {what} is NaN or infinite at the weights{where}{hint}")
