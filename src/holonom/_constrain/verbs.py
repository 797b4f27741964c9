"""Spaces other than spheres after an optimizer's step, by the verbs of :mod:`holonom.constraints`."""

from __future__ import annotations

import torch
from torch import Tensor

from .._step.integrate import Phase, Scalar
from ..constraints import Constraint
from .spheres import is_dropped, resolution

UNCHANGED = 8  # roundings of its largest entry by which a matrix may be off its space and stay as it is
EDITED = 1024  # roundings by which steps do not leave it: others have written it


def hold(
    space: Constraint,
    update: str,
    new: Tensor,
    old: Tensor | None,
    radius: Scalar | None,
    dropped: Scalar,
    rounding: float,
) -> Tensor:
    """Where a block, or a stack of them, goes that an optimizer moved from ``old`` to ``new``; both stay as they are.

    - plain:    the nearest point to ``new``
    - tangent:  the retraction of Π Δ at ``old``, Δ = new − old

    ``dropped`` is lr·λ of a weight decay that is left out: Δ + lr·λ·old takes the place of Δ. What did not move, or by
    that decay alone (the optimizer computes it to ``rounding``), stays as it is, bit for bit. ``old`` is not needed by
    plain, unless something is dropped. A retraction that has no root is NaN on a device; :func:`without_root` finds it.
    """
    if old is None or (update == "plain" and not is_dropped(dropped)):
        return nearest(space, new, radius)
    step = new - old
    moved = _any(space, step != 0)
    if is_dropped(dropped):
        step += old * dropped
        moved &= _any(space, ~(step.abs() <= resolution(dropped, rounding) * old.abs()))  # NaN has moved
    x = Phase(old.clone(), radius=radius)
    if update == "tangent":
        space.project_step_(x, step)
        space.move_(x, step)
    else:
        x.q.add_(step)
        space.nearest_(x)
    return torch.where(moved, x.q, old)


def without_root(new: Tensor, found: Tensor) -> Tensor:
    """Which matrices of a batch were finite before they were projected and are not now, to be broadcast over them."""
    return new.isfinite().flatten(-2).all(-1)[..., None, None] & ~found.isfinite().flatten(-2).all(-1)[..., None, None]


def nearest(space: Constraint, q: Tensor, radius: Scalar | None, unchanged: int = UNCHANGED) -> Tensor:
    """The nearest point; a matrix that is on its space to so many roundings stays as it is, bit for bit."""
    x = Phase(q.clone(), radius=radius)
    space.nearest_(x)
    if not space.traits.stacked:  # entry by entry, a bound: what is inside it is not touched
        return x.q
    allowed = unchanged * torch.finfo(q.dtype).eps * q.abs().amax((-2, -1), keepdim=True)
    return torch.where(_any(space, (x.q - q).abs() > allowed), x.q, q)


def _any(space: Constraint, which: Tensor) -> Tensor:
    """Whether any entry of a matrix, for spaces of matrices; else entry by entry."""
    return which.flatten(-2).any(-1)[..., None, None] if space.traits.stacked else which
