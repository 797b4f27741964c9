"""What ranks must have in common: groups when an optimizer is built, settings and gradients at every step."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import Tensor

from .._step.buckets import State
from .._step.configurational import SUMS
from .._step.hyper import SETTINGS
from ..constraints import Constraint
from ..errors import ConstraintError, NonFiniteGradientError
from .collectives import Groups, agree, size_of, union
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
    lines += [f"{name}={text}" for name, x in sorted(settings.items()) if (text := readable(x)) is not None]
    members = [p for _, p in found if p.device_mesh.get_coordinate() is not None]  # type: ignore[attr-defined]
    agree(problem, lines, union(piece_of(p).everyone for p in members), ValueError)


def agree_on_order(groups: Sequence[dict[str, Any]]) -> None:
    """Raise on all ranks if their groups follow each other in another order.

    Noise is numbered by a parameter's place among all of them, those that no rank shares included.
    """
    members = [p for group in groups for p in group["params"] if is_sharded(p)]
    lines = []
    for number, group in enumerate(groups if members else ()):
        kind = group["constraint"].partition("(")[0]  # it decides whether a step has a reduction
        each = [f"{described(p)} on {kind}" for p in group["params"]]
        more = f" … ({zlib.crc32(repr(each).encode()):08x})" if len(each) > 1 else ""
        lines.append(f"group {number} of {len(each)} parameter(s), {each[0] if each else 'none'}{more}")
    agree(None, lines, union(piece_of(p).everyone for p in members), ValueError)


def report(problem: Exception, given: Any, number: int) -> None:
    """Tell other ranks that group ``number`` of those given was refused here, if it has whole parameters only.

    They are, or will be, comparing the next group with DTensors, or the order of all. A group with DTensors has told
    them already.
    """
    groups = given if isinstance(given, list) and all(isinstance(x, dict) and "params" in x for x in given) else []
    found = [sharded(group["params"]) for group in groups]
    if number < len(found) and not found[number]:
        behind = next((own for own in found[number:] if own), None) or [x for own in found for x in own]
        agree(problem, (), union(piece_of(p).everyone for _, p in behind), ValueError)


COMPARED = ("step", "momentum", *SETTINGS)

STEPS_DIFFER = (
    "ranks differ in this step",
    "Give every rank the same settings, and gradients of the same parameters. Nothing was changed on any rank",
)
REFUSED = "another rank refused this step; its message says why. Nothing was changed on any rank"


def step_lines(action: str, groups: Iterable[tuple[int, dict[str, Any]]], state: dict[Tensor, State]) -> list[str]:
    """What a step on the host depends on besides tensors: settings, and which parameters have a gradient.

    ``groups``: those whose steps talk to other ranks, with their numbers. ``action`` is the method that was called: a
    step and ``synchronize`` begin with the same reduction.
    """
    lines = [f"{action}()"]
    for number, group in groups:
        each = [(name, readable(group.get(name))) for name in COMPARED]
        lines += [f"group {number} with {name}={text}" for name, text in each if text is not None]
        recorded = SUMS in state[group["params"][0]]
        lines.append(f"group {number} {'with' if recorded else 'without'} recorded temperatures")
        names = group.get("param_names") or [f"parameter {i}" for i in range(len(group["params"]))]
        lines += [
            f"{name!r} of group {number} {'without' if p.grad is None else 'with'} a gradient"
            for name, p in zip(names, group["params"], strict=True)
        ]
    return lines


def readable(x: Any) -> str | None:
    """A setting as text; None for what the host cannot read without waiting for a device."""
    if isinstance(x, Tensor):
        return repr(x.tolist()) if x.device.type == "cpu" else None
    return repr(x) if isinstance(x, (int, float, str)) else None


def number_of(lines: Sequence[str]) -> float:
    """Twenty bits of the lines, so that the sum of their squares over ranks is exact."""
    return float(zlib.crc32("\n".join(lines).encode()) >> 12)


def raise_for(problem: Exception | None, total: Sequence[float], lines: Sequence[str], groups: Groups) -> None:
    """Raise on all ranks, if one has a problem or they differ. ``total`` are sums over the ranks of the groups."""
    if problem is not None:
        raise problem
    bad, refused, _, number, squares = total
    if bad:
        raise NonFiniteGradientError(
            "another rank's part of the gradients has entries that are NaN or infinite; its message names the "
            "parameter. Nothing was changed on any rank"
        )
    if refused:
        raise RuntimeError(REFUSED)
    # (Σn)² = ranks·Σn² only if all n are equal.
    if int(number) ** 2 != math.prod(map(size_of, groups)) * int(squares):
        agree(None, lines, groups, RuntimeError, STEPS_DIFFER)
