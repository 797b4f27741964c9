"""Circles, after an optimizer's step: their weights are bounded in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .._step.integrate import Phase, Scalar
from .._step.run import KERNEL_DEVICES
from .._torch import has_triton
from ..constraints import Circle


def bound_(space: Circle, blocks: Sequence[Tensor], radii: Sequence[Scalar | None], table: Any) -> Any:
    """Move blocks to their nearest points in place; on a GPU in one launch, where the bound is a number.

    ``table`` is what the last call returned for tensors of these shapes, where that launch reads them from.
    """
    radius = radii[0]
    if not isinstance(radius, Tensor) and blocks[0].device.type in KERNEL_DEVICES and has_triton():
        from .._backends.triton import hold

        if hold.fits(blocks, (), ()):
            table = table or hold.Table([x.view(1, -1) for x in blocks], longest=0)
            hold.bound_(blocks, radius, table)  # type: ignore[arg-type]
            return table
    for block, own in zip(blocks, radii, strict=True):
        space.nearest_(Phase(block, radius=own))
    return table
