"""Weights that no optimizer moves: onto their manifolds, as copies or before training, and drawn there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import init
from .._sharding.shards import is_sharded, local
from .._torch import full_precision
from ..constraints import Circle, Constraint, Free, Orthogonal, Sphere
from ..ensemble.known import replica_dims
from ..errors import ConstraintError
from .buckets import SIZES
from .edits import refuse_non_finite
from .joint import gather, scatter_, units
from .order import unwrapped

if TYPE_CHECKING:
    from .._constrain.held import Held
    from ..optimizer import Langevin

Place = tuple[Constraint, list[Tensor], list[str]]  # what is landed together


@torch.no_grad()
@full_precision()
def project_(target: nn.Module | Iterable[dict[str, Any]], like: Langevin | Held | None = None) -> None:
    """Move weights to the nearest points of their manifolds: q ← argmin ‖q' − q‖ over g(q') = 0.

    An average of points on a manifold is not on it, so a copy of a model that holds averaged weights (EMA, SWA) is
    brought back before it is used; weights that are on their manifold stay as they are, bit for bit:

    >>> average = torch.optim.swa_utils.AveragedModel(model)
    >>> holonom.project_(average, like=optimizer)

    Parameters are matched by name, without the ``module.`` that a wrapper puts in front. If the optimizer was built
    from parameters without names, they are matched by order and shape. The optimizer's own weights, state and momenta
    are not touched; for those there is :meth:`holonom.Langevin.project_`.

    Args:
        target: a module (then ``like`` says what is constrained), or groups as given to an optimizer, dicts with
            ``params`` and ``constraint``. Groups without a constraint are left alone.
        like: the optimizer of the model that ``target`` is a copy of, or the handle of :func:`holonom.constrain`.
    """
    if isinstance(target, nn.Module):
        places = _matched(target, like)
    elif like is not None:
        raise TypeError("project_(groups) takes no like: groups hold their constraints. With like, give a module")
    else:
        places = _constrained(target, "project_")
    landed: list[tuple[Tensor, Tensor]] = []
    for space, params, names in places:  # copies first: nothing is written if one cannot be landed
        copies = [p.detach().clone(memory_format=torch.preserve_format) for p in params]
        here, q = gather(space, copies, names)
        here.check(q, ", ".join(names))
        if here.takes_sizes:
            raise ConstraintError(
                f"project_: {here!r} on {', '.join(names)} has radii that an optimizer keeps: for a copy of its model "
                f"call project_(copy, like=optimizer), for the model itself optimizer.project_()"
            )
        refuse_non_finite(here, q, ", ".join(names))
        if q.numel():
            here.land_(q, ", ".join(names))
            scatter_(here, copies, q)
        landed += zip(params, copies, strict=True)
    for p, q in landed:
        if not torch.equal(local(p), local(q)):  # equal values are no edit
            local(p).copy_(local(q))


@torch.no_grad()
def init_(groups: Iterable[dict[str, Any]] | Langevin, generator: torch.Generator | None = None) -> None:
    """Draw initial weights on their manifolds, for every group with a constraint.

    Uniform on circles and spheres (:func:`holonom.init.circle_`, :func:`holonom.init.sphere_`), Haar on orthogonal
    matrices (:func:`holonom.init.orthogonal_`). Where a radius or scale is "initial", blocks keep the norm they have,
    or get the one that the optimizer keeps. Groups without a constraint are left as they are. A space without such a
    law, as :class:`~holonom.constraints.LevelSet`, is refused before anything is drawn.

    >>> groups = holonom.partition(model, {"*.weight": {"constraint": Orthogonal()}, "rest": {}})
    >>> holonom.init_(groups)
    >>> optimizer = holonom.Langevin(groups, lr=0.1)

    Args:
        groups: as given to an optimizer, dicts with ``params`` and ``constraint``; or an optimizer that has taken no
            step, such as a preset's.
        generator: what to draw from; torch's default one if None.
    """
    given: Any = groups
    if hasattr(given, "_spaces"):
        places = [
            (space.held_at(given.state[params[0]].get(SIZES)), params, names)
            for space, params, names in _constrained(_groups_of(given), "init_")
        ]
    else:
        places = _constrained(given, "init_")
    for space, params, names in places:
        if not isinstance(space, (Circle, Sphere, Orthogonal)):
            raise ConstraintError(
                f"init_: {space!r} on {', '.join(names)} has no law to draw from; initialise these weights, move "
                f"them onto it by project_([group]), and give init_ the other groups"
            )
        if is_sharded(params[0]):
            raise ConstraintError(
                f"init_: {names[0]} is a DTensor, and ranks would draw its parts from generators of their own; call "
                f"init_ before the model is sharded"
            )
        space.check(params[0].detach(), names[0])
    for space, (p,), _ in places:
        drawn = p.detach().to(p.device if generator is None else generator.device, copy=True)
        if isinstance(space, Circle):
            init.circle_(drawn, space, generator)
        elif isinstance(space, Sphere):
            init.sphere_(drawn, space, generator)
        elif isinstance(space, Orthogonal):
            init.orthogonal_(drawn, space, generator)
        p.copy_(drawn)


def _groups_of(optimizer: Langevin) -> list[dict[str, Any]]:
    """An optimizer's groups as they were given, with constraints instead of their texts."""
    return [
        {
            "params": list(zip(group["param_names"], group["params"], strict=True))
            if group.get("param_names")
            else group["params"],
            "constraint": optimizer._spaces[group["params"][0]],
        }
        for group in optimizer.param_groups
        if group["params"]
    ]


def _constrained(groups: Iterable[dict[str, Any]], caller: str) -> list[Place]:
    """Every parameter of every group with a constraint."""
    if hasattr(groups, "param_groups"):
        raise TypeError(
            f"{caller} takes groups, got {type(groups).__name__}; a Langevin optimizer moves its own weights: "
            f"optimizer.project_()"
        )
    places: list[Place] = []
    for number, group in enumerate([groups] if isinstance(groups, dict) else groups):
        if not isinstance(group, dict) or "params" not in group:
            raise TypeError(
                f"{caller} takes groups as an optimizer does, dicts with 'params' and 'constraint' "
                f"(holonom.partition makes them), got {type(group).__name__} at place {number}"
            )
        space: Constraint = group.get("constraint") or Free()
        if not isinstance(space, Constraint):
            raise TypeError(
                f"{caller}: the constraint of group {number} is {space!r}, not a holonom.constraints object; for an "
                f"optimizer's groups call optimizer.project_(), for a copy of its model project_(copy, like=optimizer)"
            )
        params = group["params"]
        if not isinstance(params, (list, tuple, Tensor)):
            params = group["params"] = list(params)  # a generator would be empty for the optimizer
        own = [
            (given[1], f"'{given[0]}'") if isinstance(given, tuple) else (given, f"parameter {i} of group {number}")
            for i, given in enumerate([params] if isinstance(params, Tensor) else params)
        ]
        if not isinstance(space, Free):
            dims = replica_dims([p for p, _ in own], None)
            space = space.over_replicas(dims) if dims else space
            places += [(space, *unit) for unit in units(space, [p for p, _ in own], [name for _, name in own])]
    return places


def _matched(module: nn.Module, like: Langevin | Held | None) -> list[Place]:
    """The module's parameters whose counterparts in the optimizer have a constraint."""
    if like is None or not hasattr(like, "_spaces"):
        raise TypeError(
            "project_(module, like=…) needs the Langevin optimizer of the model it is a copy of, or the handle of "
            "holonom.constrain"
        )
    copies = {unwrapped(name): p for name, p in module.named_parameters()}
    named = [
        (name, p) for g in like.param_groups for name, p in zip(g.get("param_names") or (), g["params"], strict=False)
    ]
    if len(named) == sum(len(g["params"]) for g in like.param_groups):
        originals = {unwrapped(name): p for name, p in named}
        wanted = {name: p for name, p in originals.items() if not isinstance(like._spaces[p], Free)}
        missing = [name for name in wanted if name not in copies]
        if missing:
            raise ValueError(
                f"project_: the module has no parameter named {', '.join(map(repr, missing[:5]))}, which the optimizer "
                f"constrains; give a copy of the model that the optimizer was built for"
            )
    else:
        originals = dict(zip(copies, _in_order(list(copies.values()), like), strict=True))
        wanted = {name: p for name, p in originals.items() if not isinstance(like._spaces[p], Free)}
    for name, p in wanted.items():
        if copies[name].shape != p.shape:
            raise ValueError(
                f"project_: {name!r} has shape {tuple(copies[name].shape)} in the module and {tuple(p.shape)} in the "
                f"optimizer; give a copy of the model that the optimizer was built for"
            )
    names = {p: name for name, p in wanted.items()}
    places: list[Place] = []
    for group in like.param_groups:
        own = [p for p in group["params"] if p in names]
        if own:
            called = [f"'{names[p]}'" for p in own]
            space = like._spaces[own[0]]
            places += [
                (space.held_at(like.state[params[0]].get(SIZES)), params, labels)
                for params, labels in units(space, own, called)
            ]
    twins = dict(zip(wanted.values(), (copies[name] for name in wanted), strict=True))
    return [(space, [twins[p] for p in params], called) for space, params, called in places]


def _in_order(copies: list[Tensor], like: Langevin | Held) -> list[Tensor]:
    """The optimizer's parameters, none of which has a name, if their order can be no other than the module's."""
    held = [p for group in like.param_groups for p in group["params"]]
    spaces: dict[torch.Size, set[str]] = {}
    for p in held:
        spaces.setdefault(p.shape, set()).add(repr(like._spaces[p]))
    same = [p.shape for p in held] == [p.shape for p in copies]
    if not same or any(len(found) > 1 for found in spaces.values()):
        why = (
            "parameters of one shape have different constraints"
            if same
            else "their shapes are not the module's, in order"
        )
        raise ValueError(
            f"project_: the optimizer does not know the names of its parameters, and {why}. Build it from "
            f"model.named_parameters() or holonom.partition, or call project_(groups) with the copy's parameters"
        )
    return held
