"""Constraints of one model's parameters, read on stacks of chains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..constraints import Constraint, Free, View
from ..constraints.views import Viewed
from ..errors import ConstraintError, PartitionError
from ..partitions import partition
from .chains import Chains

Spaces = dict[str, Constraint]


def make_spaces(constraints: Mapping[Any, Constraint] | None, model: nn.Module) -> Spaces:
    """A space for every sampled parameter, as it reads a stack of them; ``constraints`` maps selectors to spaces."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    free = Free()
    spaces: Spaces = dict.fromkeys(trained, free)
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
        if not space.has_dynamics or space.takes_sizes:
            raise ConstraintError(
                f"{space!r} cannot be sampled on: the law needs a manifold that does not depend on where chains start; "
                f"give Sphere, Circle, Orthogonal or LevelSet with numbers"
            )
        if space.traits.joint:
            raise ConstraintError(
                f"{space!r} holds several tensors at once, and sample() moves each by itself: hold them apart, or run "
                f"holonom.Langevin with this constraint and a Recorder in a loop of your own"
            )
        stacked: dict[int, Constraint] = {}  # by the number of dimensions; parameters that share a space share a group
        for name, p in group["params"]:
            if name in trained:
                space.check(p.detach(), f"'{name}'")
                spaces[name] = stacked.setdefault(p.ndim, _for_chains(space, p))
    return spaces


def land_(spaces: Spaces, chains: Chains) -> None:
    """Move the chains' starts to their manifolds: draws of a prior do not lie there."""
    with torch.no_grad():
        for name, p in chains.parameters.items():
            if not isinstance(spaces[name], Free):
                spaces[name].land_(p.detach(), f"'{name}'")


def _for_chains(space: Constraint, p: Tensor) -> Constraint:
    """The same space with one more dimension in front."""
    radius = getattr(space, "radius", None)
    if isinstance(space, Viewed) and isinstance(radius, Tensor) and radius.ndim:
        raise ConstraintError(f"{space!r}: one radius for every row does not fit a stack of chains; give one radius")
    space = space.over_replicas(1)
    if isinstance(space, Viewed) and p.ndim > 1 and space.block_view != "batch":
        own = space.block_view if isinstance(space.block_view, View) else space.reading or View()
        return space.read_by(View(own.batch + 1, own.output, own.blocks), p.ndim + 1)
    return space
