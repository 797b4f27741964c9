"""Checkpoints of held weights: by name, apart from weights and from the optimizer's own state."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._lines import users_line
from .._sharding.shards import is_sharded, local, piece_of, whole
from .._step.order import unwrapped
from ..errors import CheckpointError
from .claims import Claim

State = dict[str, Any]
KEY = "holonom"
FORMAT = 1
SAME = 1e-4  # of a norm: by what that of weights on a sphere may differ from its radius


def state_of(claims: Sequence[Claim]) -> State:
    held: dict[str, dict[str, Any]] = {}
    for claim in claims:
        own: dict[str, Any] = {"space": claim.text}
        master = claim.master
        if master is not None and is_sharded(claim.parameter):
            master = piece_of(claim.parameter).spread(master)
        own |= {name: x for name, x in (("sizes", claim.sizes), ("master", master)) if x is not None}
        held[unwrapped(claim.name)] = own
    return {"format": FORMAT, "held": held}


def merged(one: State | None, other: State) -> State:
    """The state of several handles of one optimizer."""
    return other if one is None else {**other, "held": {**one["held"], **other["held"]}}


def into_groups_(groups: Sequence[State], owned: Sequence[State], state: State, claims: Sequence[Claim]) -> None:
    """Write the state of claims into the saved groups of their parameters, from where torch's distributed checkpoints
    take it: of all else beside ``state`` and ``param_groups`` they know nothing."""
    for group, live in zip(groups, owned, strict=True):
        params = {id(p) for p in live["params"]}
        names = [unwrapped(claim.name) for claim in claims if id(claim.parameter) in params]
        if names:
            group[KEY] = merged(group.get(KEY), {**state, "held": {name: state["held"][name] for name in names}})


def out_of_groups(state_dict: State) -> State:
    """A checkpoint of an optimizer with that state beside its groups instead of in them."""
    found = state_dict.get(KEY)
    for group in state_dict["param_groups"]:
        if KEY not in state_dict and KEY in group:
            found = merged(found, group[KEY])
    if found is None:
        return state_dict
    groups = [{name: x for name, x in group.items() if name != KEY} for group in state_dict["param_groups"]]
    return {**state_dict, KEY: found, "param_groups": groups}


def check(claims: Sequence[Claim], state: Any) -> None:
    """Raise if a checkpoint is not one of these weights on these spaces; nothing is written."""
    if not isinstance(state, dict) or not isinstance(state.get("held"), dict):
        raise CheckpointError("this is no state of holonom.constrain: give what held.state_dict() returned")
    if state.get("format") != FORMAT:
        raise CheckpointError(f"the checkpoint's format is {state.get('format')!r}, this release reads {FORMAT}")
    for claim in claims:
        own = state["held"].get(unwrapped(claim.name))
        if own is None:
            known = ", ".join(map(repr, list(state["held"])[:6]))
            raise CheckpointError(
                f"'{claim.name}' is held on {claim.text}, but not in the checkpoint, which holds {known}: build the "
                f"handle by the rules that the checkpoint was made with"
            )
        if own["space"] != claim.text:
            raise CheckpointError(
                f"'{claim.name}' is held on {claim.text}, in the checkpoint on {own['space']}: build the handle by "
                f"the rules that the checkpoint was made with"
            )
        found, sizes = own.get("sizes"), claim.sizes
        if (sizes is None) != (found is None) or (sizes is not None and sizes.shape != found.shape):
            raise CheckpointError(f"the checkpoint's sizes of '{claim.name}' are not those of its blocks")


def load_(claims: Sequence[Claim], state: State) -> None:
    """Take over sizes and float32 weights."""
    for claim in claims:
        own = state["held"][unwrapped(claim.name)]
        master: Tensor | None = own.get("master")
        claim.master = None
        if master is not None and claim.is_narrow:
            claim.master = _here(master, claim).to(claim.tensor.device, torch.float32, copy=True)
        landed, claim.landed = claim.landed, None
        if landed is not None and landed.unchanged(claim.parameter) and _came_with(claim, landed.before, own):
            claim.tensor.copy_(landed.before)
        if claim.sizes is not None:
            claim.sizes = own["sizes"].to(claim.sizes, copy=True)
            claim.space = claim.space.held_at(claim.sizes)


def _came_with(claim: Claim, weights: Tensor, own: State) -> bool:
    """Whether weights, as they were before they were landed, are those of a checkpoint, so that landing was wrong.

    Trainers may load weights before the optimizer is built, as Lightning does. Then the norms of trained weights were
    taken for initial ones, and multiplied by ``factor``; half precision was rounded a second time.
    """
    if claim.is_narrow:
        return claim.master is not None and torch.equal(claim.master.to(weights.dtype), weights)
    if claim.sizes is None:
        return False
    norms = claim.sizes / getattr(claim.space, "factor", 1.0)
    return torch.allclose(norms, own["sizes"].to(norms), rtol=SAME, atol=0.0)


def _here(x: Tensor, claim: Claim) -> Tensor:
    """This rank's part of a saved tensor of a parameter's shape, whole or spread over ranks."""
    if not is_sharded(claim.parameter):
        return whole(x)
    piece = piece_of(claim.parameter)
    if is_sharded(x) and piece_of(x) == piece:
        return local(x)
    return piece.narrow(whole(x))


def warn_missing(claims: Sequence[Claim]) -> None:
    if any(claim.sizes is not None for claim in claims):
        warnings.warn(
            "the optimizer's checkpoint has no 'holonom' entry, so that radii and scales stay those of the weights "
            "that constrain found: load held.state_dict() as well, or build the handle once the weights are loaded",
            stacklevel=users_line(),
        )
