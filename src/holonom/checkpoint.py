"""Checkpoints: does this one belong here, and its state at the precision it was saved in."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .cell import Cell, state_dtype
from .constraints.base import MOMENTA, Constraint
from .errors import CheckpointError
from .groups import Arrival

_MUST_AGREE = {
    "constraint": "build the optimizer with the checkpoint's constraint; to change it, start from the weights alone",
    "scheme": "build the optimizer with the checkpoint's scheme; to change it, start from the weights alone",
}


def check(groups: list[dict[str, Any]], state: dict[Tensor, dict[str, Any]], saved: dict[str, Any]) -> None:
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
        for p, index in zip(group["params"], other["params"], strict=True):
            own, theirs = state[p], saved["state"].get(index, {})
            wrong = {
                k
                for k in own.keys() | theirs.keys()
                if k not in own or k not in theirs or own[k].shape != theirs[k].shape
            }
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


def restore_state(groups: list[dict[str, Any]], state: dict[Tensor, dict[str, Any]], saved: dict[str, Any]) -> None:
    """Put the saved tensors back in the dtype this optimizer keeps its state in.

    torch casts loaded state to the parameter's dtype, which would turn a half-precision model's
    float32 momenta and slack into half precision and break the constraint.
    """
    for group, other in zip(groups, saved["param_groups"], strict=True):
        if isinstance(group["seed"], Tensor) and group["params"]:
            group["seed"] = group["seed"].to(group["params"][0].device)
        for p, index in zip(group["params"], other["params"], strict=True):
            state[p] = {
                k: v.to(p.device, state_dtype(p) if v.is_floating_point() else v.dtype, copy=True)
                for k, v in saved["state"].get(index, {}).items()
            }


def put_back(
    groups: list[dict[str, Any]],
    spaces: list[Constraint],
    state: dict[Tensor, dict[str, Any]],
    arrived: dict[Tensor, Arrival],
) -> None:
    """Undo the landing of weights that agree with the restored state as they came: they are the checkpoint's."""
    for group, space in zip(groups, spaces, strict=True):
        for p in group["params"]:
            if p not in arrived or not arrived[p].is_as_landed(p):
                continue
            p.detach().copy_(arrived[p].came)
            cell = Cell(space, [p], [""], [0])
            if not space.holds(cell.widened(cell.phase(state)), p.dtype):
                p.detach().copy_(arrived[p].landed)
