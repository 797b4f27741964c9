"""The state of a new group: checking parameters, landing them on their manifolds, creating all that steps need."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._lines import users_line
from .._sharding.shards import is_sharded, local, writes
from .._sharding.state import placed
from ..constraints import Free
from ..constraints.base import MOMENTA, Constraint, Landing
from ..errors import ConstraintError
from ..scheme import compile_word
from . import thermostat
from .buckets import SIZES, State, state_dtype
from .configurational import REFERENCE, SUMS
from .edits import lift_
from .joint import gather, scatter_, units

FORMAT = 3
"""Of checkpoints. Up to 2, groups of ``like_sgd`` held a time step and a friction.
0.1.0 wrote no ``format`` in its groups, no ``stream`` and not always a ``clock`` in its state."""

SHARED = ("clock", "thermostat", SUMS)
"""State that a group has one of, held by its first parameter."""

Landings = list[tuple[Constraint, Landing, str]]
"""The space, what landing did, and the name of every parameter that was landed."""


class Landed(NamedTuple):
    """A parameter before and after landing, and torch's count of the writes to it then."""

    before: Tensor
    after: Tensor
    version: int

    def unchanged(self, p: Tensor) -> bool:
        """The count does not see what is written through ``.data``."""
        return writes(p) == self.version and torch.equal(local(p).detach(), self.after)


def unland_(landed: dict[Tensor, Landed], params: Iterable[Tensor]) -> None:
    """Put weights back as they came: their optimizer could not be built."""
    for p in params:
        if p in landed:
            local(p).detach().copy_(landed.pop(p).before)


def without_duplicates(params: Any) -> list[Any]:
    """The parameters of a group as a list; one that is given twice counts once, with torch's warning."""
    given = [params] if isinstance(params, Tensor) else list(params)
    by_id = {id(x[1] if isinstance(x, tuple) else x): x for x in reversed(given)}
    if len(by_id) < len(given):
        warnings.warn(
            "optimizer contains a parameter group with duplicate parameters; each counts once (tied weights are one "
            "parameter: model.parameters() lists them once)",
            stacklevel=users_line(),
        )
    return list(reversed(by_id.values()))


def check_params(params: list[Any], known: set[int]) -> None:
    """Real floating-point tensors, each in one group only; ``known`` holds the ids of those already given."""
    for p in params:
        if not isinstance(p, Tensor):
            raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
        if id(p) in known:
            raise ValueError(
                f"some parameters appear in more than one parameter group: one of shape {tuple(p.shape)} was given "
                f"twice (tied weights are one parameter: model.parameters() lists them once)"
            )
        if not p.is_floating_point():
            instead = "; hold real and imaginary parts as one real parameter (torch.view_as_real)" * p.is_complex()
            raise TypeError(
                f"a parameter of shape {tuple(p.shape)} is {p.dtype}: holonom moves real floating-point tensors"
                f"{instead}"
            )
        if p.layout != torch.strided:
            raise TypeError(f"a parameter of shape {tuple(p.shape)} is {p.layout}: make it dense (p.to_dense())")
        known.add(id(p))


def names_of(group: dict[str, Any], first: int) -> list[str]:
    """What messages call the parameters of a group whose first one is parameter number ``first``."""
    names = group.get("param_names")
    return [f"'{name}'" for name in names] if names else [f"parameter {first + i}" for i in range(len(group["params"]))]


def create(
    group: dict[str, Any],
    space: Constraint,
    params: list[Tensor],
    names: list[str],
    state: dict[Tensor, State],
    landed: dict[Tensor, Landed],
) -> Landings:
    """Land new parameters of a group and create all of their state; nothing is created later.

    ``landed`` gets the weights that were moved: those of a checkpoint may agree with its state as they came.
    """
    scheme, landings = compile_word(group["scheme"]), []
    first = 1 + max((int(s["stream"]) for s in state.values() if "stream" in s), default=-1)  # no stream twice
    recorded = any(SUMS in state.get(p, {}) for p in group["params"])  # the group's temperature, before these joined
    for unit, own in units(space, params, names):
        # Flat space has nothing to gather of a DTensor.
        here, q = (space, unit[0].detach()) if isinstance(space, Free) else gather(space, unit, own)
        name = ", ".join(own)
        here.check(q, name)
        if not isinstance(space, Free) and q.is_meta:
            raise ConstraintError(f"{space!r} on {name}: the weights are on the meta device; initialise them first")
        if not isinstance(space, Free) and not bool(q.isfinite().all()):
            raise ConstraintError(f"{space!r} on {name}: the weights hold NaN or infinity; initialise them first")
        sizes = here.sizes(q, name) if q.numel() else None
        here = here.held_at(sizes)
        if q.numel() and not isinstance(space, Free):
            before = [local(p).detach().clone() for p in unit]
            landing = here.land_(q, name)
            if landing.moved:
                scatter_(here, unit, q)
                after = [local(p).detach().clone() for p in unit]
                landed |= {p: Landed(b, a, writes(p)) for p, b, a in zip(unit, before, after, strict=True)}
            frozen = any(not p.requires_grad for p in unit)
            landings.append((space, landing._replace(frozen=landing.moved if frozen else 0), name))
        for p in unit:
            state[p] = {"stream": torch.tensor(first, device="cpu")}  # on the host, which alone reads it
            first += 1
            if not scheme.overdamped:
                momentum = torch.zeros_like(p.detach(), dtype=state_dtype(p))
                momentum_name = space.momentum_name(q if len(unit) == 1 else p.detach())
                state[p][momentum_name] = momentum if is_sharded(p) else space.readable(momentum)
            elif scheme.word == "M":
                state[p]["last_noise"] = torch.zeros_like(p.detach(), dtype=state_dtype(p))
            if sizes is not None:
                state[p][SIZES] = sizes
            if recorded:
                state[p][REFERENCE] = p.detach().to(state_dtype(p), copy=True)
        lift_(here, q, state[unit[0]])
        placed(space, unit[0], state[unit[0]])
    return landings


def space_of(group: dict[str, Any], number: int, spaces: dict[Tensor, Constraint]) -> Constraint:
    """The space of a group that was regrouped or grew; refused where its parameters were not built for one."""
    found = [spaces[p] for p in group["params"] if p in spaces]
    if len(kinds := {repr(space) for space in found}) > 1:
        raise ValueError(
            f"group {number} of param_groups holds parameters of different constraints, {' and '.join(sorted(kinds))}; "
            f"a group has one: keep them apart, or build a new optimizer from the weights"
        )
    if found[0].traits.joint and len(found) < len(group["params"]):
        raise ValueError(
            f"a tensor was appended to a group with {found[0]!r}, whose function takes the tensors it was "
            f"given; build a new optimizer from the weights"
        )
    return found[0]


def create_shared(group: dict[str, Any], state: dict[Tensor, State]) -> None:
    """Create what a group has one of: the clock, and a thermostat ξ for every replica."""
    first = group["params"][0]
    if isinstance(group["seed"], Tensor):
        group["seed"] = group["seed"].to(first.device)
    state[first]["clock"] = torch.full((), group["step"], dtype=torch.int64, device=first.device)
    if compile_word(group["scheme"]).thermostatted and "thermostat" not in state[first]:
        numbers = [group[name] for name in (
            "lr", "temperature", "coupling", "driving_noise", "thermostat_time", "thermostat_friction"
        )]  # fmt: skip
        shapes = [x.shape for x in numbers if isinstance(x, Tensor) and x.numel() > 1]
        shapes += [group["seed"].shape] if isinstance(group["seed"], Tensor) else []
        shape = torch.broadcast_shapes(*shapes) if shapes else ()  # type: ignore[no-untyped-call]
        xi = torch.zeros(shape, dtype=state_dtype(first), device=first.device)
        state[first]["thermostat"] = xi + torch.as_tensor(thermostat.at_start(group), dtype=xi.dtype).to(xi)


def settle_shared(group: dict[str, Any], state: dict[Tensor, State]) -> None:
    """Move what a group has one of to its first parameter, after parameters were regrouped; create what is missing."""
    first, *others = group["params"]
    if "clock" in state[first] and not any("clock" in state[p] for p in others):
        return
    clocks = [own["clock"].to(first.device) for own in state.values() if "clock" in own]
    for name in SHARED:
        held = [state[p].pop(name) for p in others if name in state[p]]
        if held:
            state[first].setdefault(name, held[0])
    if "clock" not in state[first]:
        create_shared(group, state)
    if clocks:  # streams stay the parameters' own: at the latest clock no noise is drawn twice
        state[first]["clock"] = torch.stack(clocks).amax()


def space_named(constraint: Any, spaces: dict[Tensor, Constraint]) -> Any:
    """The space whose text a copied group holds; anything else as it is."""
    if not isinstance(constraint, str):
        return constraint
    by_text = {repr(space): space for space in spaces.values()}
    if constraint not in by_text:
        raise TypeError(
            f"a group in param_groups has the constraint {constraint!r}, which no other group has; add the group by "
            f"add_param_group, with a holonom.constraints object"
        )
    return by_text[constraint]


def check_word(group: dict[str, Any], state: dict[Tensor, State]) -> None:
    """A word assigned after construction may need what was never created."""
    if not group["params"]:
        return
    scheme, anchor = compile_word(group["scheme"]), state[group["params"][0]]
    if scheme.overdamped:
        able = scheme.word != "M" or "last_noise" in anchor
    else:
        able = any(name in anchor for name in MOMENTA) and (not scheme.thermostatted or "thermostat" in anchor)
    if not able:
        raise ValueError(
            f"scheme {scheme.word!r} was assigned to a group that was built for another word and has no state for it; "
            f"build a new optimizer from the weights"
        )


def warn_landed(landings: Landings, most: int = 4) -> None:
    """One warning for all parameters that had to be moved."""
    moved = [one for one in landings if one[1].moved and not one[0].only_rescales]
    if not moved:
        return
    parts = []
    for kind in dict.fromkeys(type(space).__name__ for space, *_ in moved):
        all_of_kind = [landing for space, landing, _ in landings if type(space).__name__ == kind]
        names = [name for space, _, name in moved if type(space).__name__ == kind]
        more = f" and {len(names) - most} more" if len(names) > most else ""
        count, blocks = sum(x.moved for x in all_of_kind), sum(x.blocks for x in all_of_kind)
        far = max(x.distance for x in all_of_kind)
        parts.append(f"{kind}: {count:,} of {blocks:,} by up to {far:.3g}, in {', '.join(names[:most])}{more}")
    still = sum(landing.frozen for _, landing, _ in moved)
    frozen = (
        f" {still:,} are frozen (requires_grad=False): to leave them alone, give them no constraint." if still else ""
    )
    advice = " holonom.init_ starts on the manifold." if any(space.has_initialiser for space, *_ in moved) else ""
    warnings.warn(
        "weights that did not satisfy their constraint were moved to the nearest point that does ("
        + "; ".join(parts)
        + ")."
        + frozen
        + advice,
        stacklevel=users_line(),
    )
