"""Groups: checking parameters, landing them on their manifolds and creating their state."""

from __future__ import annotations

import sys
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .cell import Cell, State, state_dtype
from .constraints.base import Constraint, Landing
from .errors import ConstraintError
from .scheme import compile_word

Landings = list[tuple[Constraint, Landing]]


class Arrival(NamedTuple):
    """A parameter as it came and as it was landed, and torch's count of the writes to it then."""

    came: Tensor
    landed: Tensor
    version: int

    def is_as_landed(self, p: Tensor) -> bool:
        """The count does not see what is written through ``.data``."""
        return p._version == self.version and torch.equal(p.detach(), self.landed)


def check_params(params: list[Any], known: set[int]) -> None:
    """Real floating-point tensors, each in one group only; ``known`` holds the ids of those already given."""
    for p in params:
        if not isinstance(p, Tensor):
            raise TypeError(f"parameters must be tensors, got {type(p).__name__}")
        if id(p) in known:
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} was given twice; each belongs to exactly one group "
                f"(tied weights are one parameter: model.parameters() lists them once)"
            )
        if not p.is_floating_point():
            raise TypeError(
                f"a parameter of shape {tuple(p.shape)} is {p.dtype}: holonom moves real floating-point tensors; "
                f"hold real and imaginary parts as two parameters (torch.view_as_real)"
            )
        if _is_spread(p):
            raise TypeError(
                f"a parameter of shape {tuple(p.shape)} is a DTensor, spread over several devices: constraints, noise "
                f"and temperatures need whole tensors. Wrap the model in DistributedDataParallel, which keeps them "
                f"whole, or leave this parameter out of fully_shard (ignored_params)"
            )
        known.add(id(p))


def _is_spread(p: Tensor) -> bool:
    distributed = sys.modules.get("torch.distributed.tensor")  # a slow import; where nobody made it there are none
    return distributed is not None and isinstance(p, distributed.DTensor)


def name_of(group: dict[str, Any], offset: int, index: int) -> str:
    names = group.get("param_names")
    return f"'{names[offset]}'" if names else f"parameter {index}"


def create_state(
    group: dict[str, Any], space: Constraint, start: int, state: dict[Tensor, State], arrived: dict[Tensor, Arrival]
) -> Landings:
    """Land every parameter of a new group and create all of its state; nothing is created later.

    ``arrived`` gets the weights that were moved as they came: those of a checkpoint may be where they belong.
    """
    scheme = compile_word(group["scheme"])
    landings: Landings = []
    for offset, p in enumerate(group["params"]):
        name = name_of(group, offset, start + offset)
        space.check(p.detach(), name)
        if type(space) is not Constraint and not bool(p.detach().isfinite().all()):
            raise ConstraintError(f"{space!r} on {name}: the weights hold NaN or infinity; initialise them first")
        if p.numel():
            before = None if type(space) is Constraint else p.detach().clone()
            landing = space.land_(space.view(p.detach()), name)
            if landing.moved and before is not None:
                arrived[p] = Arrival(before, p.detach().clone(), p._version)
            landings.append((space, landing._replace(frozen=landing.moved if not p.requires_grad else 0)))
        own = state[p] = {}
        if not scheme.overdamped:
            own[space.momentum_name(p.detach())] = torch.zeros_like(p.detach(), dtype=state_dtype(p))
        elif scheme.word == "M":
            own["last_noise"] = torch.zeros_like(p.detach(), dtype=state_dtype(p))
        read_slack(space, p, own)
    if scheme.thermostatted and group["params"]:
        first = group["params"][0]
        numbers = [group[name] for name in ("lr", "temperature", "coupling", "driving_noise", "seed")]
        shapes = [x.shape for x in numbers if isinstance(x, Tensor)]
        shape = torch.broadcast_shapes(*shapes) if shapes else ()  # type: ignore[no-untyped-call]
        state[first]["thermostat"] = torch.zeros(shape, dtype=state_dtype(first), device=first.device)
    if isinstance(group["seed"], Tensor) and group["params"]:
        # On the device, so that a captured graph counts its own replays.
        first = group["params"][0]
        group["seed"] = group["seed"].to(first.device)
        state[first]["clock"] = torch.zeros((), dtype=torch.int64, device=first.device)
    return landings


def read_slack(space: Constraint, p: Tensor, own: State) -> None:
    """Set the slots to what puts the parameter's present value on the manifold."""
    values = space.slack(space.view(p.detach()).to(state_dtype(p)))
    for slot, value in zip(space.slots, values, strict=True):
        if slot != "slack_momentum" or "momentum" in own:
            own[slot] = value


def take_up_edit(space: Constraint, p: Tensor, name: str, state: dict[Tensor, State], force: bool = False) -> None:
    """Continue from a parameter that was changed in place, unless its state agrees with it as it is."""
    if type(space) is Constraint or not p.numel():
        return
    cell = Cell(space, [p], [name], [0])
    if not force and space.holds(cell.widened(cell.phase(state)), p.dtype):
        return
    if not bool(p.detach().isfinite().all()):
        raise ConstraintError(f"{space!r} on {name}: the weights hold NaN or infinity; restore them first")
    space.land_(space.view(p.detach()), name)
    read_slack(space, p, state[p])
    phase = cell.widened(cell.phase(state))
    if phase.p:
        space.project_(phase, phase.momenta)


def warn_landed(landings: Landings, stacklevel: int) -> None:
    """One warning for all parameters that had to be moved."""
    moved = [(space, landing) for space, landing in landings if landing.moved]
    if not moved:
        return
    parts = []
    for kind in dict.fromkeys(type(space).__name__ for space, _ in moved):
        all_of_kind = [landing for space, landing in landings if type(space).__name__ == kind]
        count, blocks = sum(x.moved for x in all_of_kind), sum(x.blocks for x in all_of_kind)
        parts.append(f"{kind}: {count:,} of {blocks:,} by up to {max(x.distance for x in all_of_kind):.3g}")
    still = sum(landing.frozen for _, landing in moved)
    frozen = (
        f" {still:,} are frozen (requires_grad=False): to leave them alone, give them no constraint." if still else ""
    )
    advice = " holonom.init starts on the manifold." if any(space.has_initialiser for space, _ in moved) else ""
    warnings.warn(
        "weights that did not satisfy their constraint were moved to the nearest point that does ("
        + "; ".join(parts)
        + ")."
        + frozen
        + advice,
        stacklevel=stacklevel,
    )
