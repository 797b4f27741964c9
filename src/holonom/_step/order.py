"""A checkpoint in the order of the optimizer that loads it: by the names of the parameters, where both have them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from .buckets import State
from .state import SHARED

Group = dict[str, Any]
# What DistributedDataParallel, AveragedModel, torch.compile, checkpointing and sharding put into a model's names.
_WRAPPERS = re.compile(r"^(_orig_mod\.|module\.)+|\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def in_order_of(groups: Sequence[Group], state: dict[Tensor, State], saved: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint with groups and parameters in this optimizer's order, every parameter with its noise stream."""
    saved_groups, saved_state = saved.get("param_groups"), saved.get("state")
    if not saved_groups or saved_state is None:
        return saved
    indices = [index for other in saved_groups for index in other["params"]]
    # 0.1.0 wrote no streams: they were the places in its order.
    streams = {index: {"stream": place, **saved_state.get(index, {})} for place, index in enumerate(indices)}
    saved = {**saved, "state": {**saved_state, **streams}}
    if len(groups) != len(saved_groups) or not _all_named(groups) or not _all_named(saved_groups):
        return saved
    ours, theirs = [_names(group) for group in groups], [_names(group) for group in saved_groups]
    if ours == theirs:
        return saved
    _check_names(ours, theirs)
    ordered, moved = [], dict(saved["state"])
    for group, names in zip(groups, ours, strict=True):
        number = next(i for i, other in enumerate(theirs) if set(other) == set(names))
        places = [theirs[number].index(name) for name in names]
        ordered.append(_reordered(saved_groups[number], places))
        _hand_over_shared(group, saved_groups[number]["params"], places, state, moved)
    return {**saved, "param_groups": ordered, "state": moved}


def _all_named(groups: Sequence[Group]) -> bool:
    """Whether every parameter has a name and no two have the same."""
    if not all(len(group.get("param_names", ())) == len(group["params"]) for group in groups):
        return False
    found = [name for group in groups for name in _names(group)]
    return bool(found) and len(set(found)) == len(found)


def _names(group: Group) -> list[str]:
    return [unwrapped(name) for name in group["param_names"]]


def unwrapped(name: str) -> str:
    """A parameter's name without what wrappers of its model put into it."""
    return _WRAPPERS.sub("", name)


def _check_names(ours: list[list[str]], theirs: list[list[str]]) -> None:
    advice = (
        "Build the optimizer as the checkpoint's was built; to match parameters by their order alone, delete "
        "'param_names' from the groups of the checkpoint"
    )
    here, there = ({name for names in side for name in names} for side in (ours, theirs))
    if here != there:
        only = [f"only {where} {_shown(names)}" for where, names in
                (("in the checkpoint", there - here), ("here", here - there)) if names]  # fmt: skip
        raise CheckpointError(f"the checkpoint's parameters have other names: {'; '.join(only)}. {advice}")
    for number, names in enumerate(ours):
        if names and not any(set(names) == set(other) for other in theirs):
            raise CheckpointError(
                f"no group of the checkpoint has the parameters of group {number}, {_shown(names)}. {advice}"
            )


def _shown(names: Any) -> str:
    found = sorted(names)
    return ", ".join(map(repr, found[:4])) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def _reordered(other: Group, places: list[int]) -> Group:
    """A saved group with its parameters, and what is said of them by place, in another order."""
    result = {**other, **{key: [other[key][place] for place in places] for key in ("params", "param_names")}}
    if "resting" in other:
        result["resting"] = [number for number, place in enumerate(places) if place in other["resting"]]
    return result


def _hand_over_shared(
    group: Group, indices: list[Any], places: list[int], state: dict[Tensor, State], moved: dict[Any, State]
) -> None:
    """What a group has one of lies in the state of its first parameter: from the saved first one to ours."""
    if not places or places[0] == 0:
        return
    first, second = indices[0], indices[places[0]]
    here = state[group["params"][0]], state[group["params"][places.index(0)]]
    shared = {k: v for k, v in moved[first].items() if k in SHARED or (k in here[0] and k not in here[1])}
    moved[first] = {k: v for k, v in moved[first].items() if k not in shared}
    moved[second] = {**moved[second], **shared}
