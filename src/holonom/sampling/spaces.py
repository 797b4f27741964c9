"""Constraints of one model's parameters, read on stacks of chains."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..constraints import Constraint, Free, LevelSet
from ..errors import ConstraintError, PartitionError
from ..partitions import partition
from .chains import Chains

Spaces = dict[str, Constraint]


def make_spaces(constraints: Mapping[Any, Constraint] | None, model: nn.Module) -> Spaces:
    """A space for every sampled parameter, as it reads a stack of them; ``constraints`` maps selectors to spaces."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    spaces: Spaces = {name: Free() for name in trained}
    if not constraints:
        return spaces
    rules: dict[Any, dict[str, Any]] = {selector: {"constraint": space} for selector, space in constraints.items()}
    try:
        groups = partition(model, {"rest": {}, **rules}, verbose=False)
    except PartitionError as error:
        raise PartitionError(f"constraints: {error}") from None
    for group in groups:
        space = group.get("constraint")
        if space is None:
            continue
        if not isinstance(space, Constraint):
            raise TypeError(f"constraints map selectors to holonom.constraints objects, got {space!r}")
        for name, p in group["params"]:
            if name in trained:
                space.check(p.detach(), f"'{name}'")
                spaces[name] = _for_chains(space, p)
    return spaces


def land_(spaces: Spaces, chains: Chains) -> None:
    """Move the chains' starts to their manifolds: draws of a prior do not lie there."""
    with torch.no_grad():
        for name, p in chains.parameters.items():
            if not isinstance(spaces[name], Free):
                spaces[name].land_(p.detach(), f"'{name}'")


def _for_chains(space: Constraint, p: Tensor) -> Constraint:
    """The same space with one more dimension in front."""
    stacked = copy.copy(space)
    if isinstance(stacked, LevelSet):
        stacked.batch_dims += 1
    elif hasattr(stacked, "block_view"):
        view = stacked.block_view
        if view in (None, "auto"):
            view = "conv" if p.ndim > 2 else None
        stacked.block_view = {None: "batch" if p.ndim > 1 else None, "conv": "batch conv"}.get(view, view)
    radius = getattr(stacked, "radius", None)
    if isinstance(radius, Tensor) and radius.ndim and hasattr(stacked, "block_view"):
        raise ConstraintError(
            f"{space!r}: chains are stacked, which one radius for every row does not fit; give one radius, or one "
            f"selector for every row's tensor"
        )
    return stacked
