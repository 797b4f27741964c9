"""Checkpoints: does this one belong here, and its state at the precision it was saved in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..constraints.base import MOMENTA, Constraint
from ..errors import CheckpointError
from .buckets import State, state_dtype
from .edits import agrees
from .state import FORMAT, Landed

_ADDED = {"stream", "clock"}  # state that 0.1.0 did not write, or not always
_MUST_AGREE = {
    "constraint": "build the optimizer with the checkpoint's constraint; to change it, start from the weights alone",
    "scheme": "build the optimizer with the checkpoint's scheme; to change it, start from the weights alone",
}


def check(groups: list[dict[str, Any]], state: dict[Tensor, State], saved: dict[str, Any]) -> None:
    """Raise :class:`CheckpointError` unless the checkpoint was made by an optimizer like this one."""
    saved_groups = saved.get("param_groups")
    if saved_groups is None or "state" not in saved:
        raise CheckpointError("this is not an optimizer checkpoint: it has no param_groups and state")
    if len(saved_groups) != len(groups):
        raise CheckpointError(
            f"the checkpoint has {len(saved_groups)} parameter group(s), this optimizer {len(groups)}"
        )
    for number, (group, other) in enumerate(zip(groups, saved_groups, strict=True)):
        if len(group["params"]) != len(other["params"]):
            raise CheckpointError(
                f"group {number}: the checkpoint has {len(other['params'])} parameters, this one {len(group['params'])}"
            )
        for key, advice in _MUST_AGREE.items():
            if key not in other:
                raise CheckpointError(f"group {number} of the checkpoint has no {key!r}: holonom did not write it")
            if other[key] != group[key]:
                raise CheckpointError(f"group {number}: checkpoint {key} {other[key]}, here {group[key]}; {advice}")
        if other.get("format", 1) > FORMAT:
            raise CheckpointError(
                f"group {number} of the checkpoint has format {other['format']}, this version reads up to {FORMAT}: "
                f"a later version of holonom wrote it; upgrade to load it"
            )
        for p, index in zip(group["params"], other["params"], strict=True):
            wrong = _differences(state[p], saved["state"].get(index, {}))
            if len(wrong) == 2 and wrong < set(MOMENTA):
                raise CheckpointError(
                    f"group {number}: the checkpoint keeps the momentum of an orthogonal weight of shape "
                    f"{tuple(p.shape)} in other coordinates (an earlier version of holonom, or other iterations); "
                    f"start from the weights alone"
                )
            if wrong:
                raise CheckpointError(
                    f"group {number}: state {sorted(wrong)} of a parameter of shape {tuple(p.shape)} is missing or has "
                    f"another shape in the checkpoint; was it saved from another model?"
                )


def _differences(here: State, there: State) -> set[str]:
    """Names of state that one has and the other has not, or in another shape."""
    names = (here.keys() | there.keys()) - _ADDED
    return {k for k in names if k not in here or k not in there or here[k].shape != there[k].shape}


def restore(groups: list[dict[str, Any]], before: list[dict[str, Any]], state: dict[Tensor, State], saved: Any) -> None:
    """Put the saved tensors back in the dtype this optimizer keeps its state in; add what 0.1.0 did not write.

    torch casts loaded state to the parameter's dtype, which would turn a half-precision model's
    float32 momenta and slack into half precision and break the constraint.
    """
    stream = 0
    for group, own, other in zip(groups, before, saved["param_groups"], strict=True):
        for name, value in own.items():
            group.setdefault(name, value)
        group["format"] = FORMAT
        for number, (p, index) in enumerate(zip(group["params"], other["params"], strict=True)):
            theirs = saved["state"].get(index, {})
            state[p] = {k: _as_kept(v, p) for k, v in theirs.items()}
            state[p].setdefault("stream", stream)
            stream += 1
            if number == 0:
                if isinstance(group["seed"], Tensor):
                    group["seed"] = group["seed"].to(p.device)
                if "clock" not in state[p]:
                    state[p]["clock"] = torch.full((), group["step"], dtype=torch.int64, device=p.device)


def _as_kept(value: Any, p: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(p.device, state_dtype(p) if value.is_floating_point() else value.dtype, copy=True)


def undo_landings(spaces: dict[Tensor, Constraint], state: dict[Tensor, State], landed: dict[Tensor, Landed]) -> None:
    """Undo the landing of weights that agree with the restored state as they came: they are the checkpoint's."""
    for p, record in landed.items():
        if record.unchanged(p):
            p.detach().copy_(record.before)
            if not agrees(spaces[p], p, state[p]):
                p.detach().copy_(record.after)
