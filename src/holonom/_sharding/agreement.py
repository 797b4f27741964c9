"""Groups with DTensors: what is refused when an optimizer is built, on all ranks alike."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor

from ..constraints import Constraint
from ..errors import ConstraintError
from .collectives import agree
from .shards import described, is_sharded, local, piece_of, refuse_placement

Named = list[tuple[str, Tensor]]


def named(given: Any) -> Named:
    """The tensors among the parameters of a group, with what messages call them."""
    items: Iterable[Any] = [given] if isinstance(given, Tensor) else given
    pairs = [x if isinstance(x, tuple) else (f"parameter {i}", x) for i, x in enumerate(items)]
    return [(str(name), p) for name, p in pairs if isinstance(p, Tensor)]


def sharded(given: Any) -> Named:
    """The DTensors among them; none of what is no collection of parameters, which is refused elsewhere."""
    if not isinstance(given, (Tensor, Collection)):
        return []
    return [(name, p) for name, p in named(given) if is_sharded(p)]


def refuse_placements(found: Named) -> None:
    for name, p in found:
        refuse_placement(p, f"'{name}'")


def refuse_groups(group: dict[str, Any], space: Constraint) -> None:
    """Raise for groups that work whole, but not in parts. ``group`` has the optimizer's defaults, too."""
    found = named(group["params"])
    if "every" in group:
        raise TypeError(
            "MultirateLangevin does not take DTensors: use holonom.Langevin, or keep slow and fast parameters whole "
            "(DistributedDataParallel, or ignored_params of fully_shard)"
        )
    seed = group.get("seed")
    if isinstance(seed, Tensor) and seed.ndim:
        raise ValueError("seeds of several replicas need whole parameters; DTensors take one number")
    devices = {local(p).device.type for _, p in found}
    if len(devices) > 1:
        raise ValueError(f"a group lies on {' and '.join(sorted(devices))}: give every device a group of its own")
    if space.traits.joint:
        meshes = {(piece_of(p).mesh, piece_of(p).placements) for _, p in found if is_sharded(p)}
        if len({mesh for mesh, _ in meshes}) > 1:
            raise ConstraintError(
                f"{space!r} takes all tensors of its group together, which lie on {len(meshes)} different meshes; "
                f"put them on one"
            )


def agree_on(problem: Exception | None, settings: dict[str, Any], space: Any, given: Any, found: Named) -> None:
    """Raise on all ranks if one of them refuses the group, or was given another one.

    ``settings`` are the group's options with the optimizer's defaults, ``space`` its constraint.
    """
    lines = [f"'{name}' {described(p)}" for name, p in named(given)]
    lines += [f"the constraint {space!r}"]
    lines += [f"{name}={x!r}" for name, x in sorted(settings.items()) if isinstance(x, (int, float, str))]
    members = [p for _, p in found if p.device_mesh.get_coordinate() is not None]  # type: ignore[attr-defined]
    agree(problem, lines, piece_of(members[0]).everyone if members else (), ValueError)
