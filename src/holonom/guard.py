"""Keeping NaN and infinity out of the weights.

On a CPU a bad gradient raises before anything is written. On a device that question would stall the
host, so the answer stays there (as a GradScaler's does) and letters are told to write what was there
before; it is reported when somebody asks. Where a projection can fail too, which shows only when it is
done, everything is put back afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .cell import Cell
from .errors import NonFiniteGradientError
from .undo import Undo

UNGUARDED = nullcontext()
_SMALL = 65_536  # entries below which a sum is faster than the extremes, which read memory faster


def guarded(
    active: list[list[Cell]],
    state: dict[Tensor, dict[str, Any]],
    step: int,
    skipped: dict[torch.device, Tensor],
) -> AbstractContextManager[None]:
    """In which to run a step so that non-finite gradients never reach weights or state."""
    on_device = []
    for cells in active:
        for cell in cells:
            if cell.params[0].is_cuda:
                on_device.append(cell)
            else:
                _refuse_non_finite(cell, step)
    return _masked(on_device, state, skipped) if on_device else UNGUARDED


@contextmanager
def _masked(
    cells: list[Cell], state: dict[Tensor, dict[str, Any]], skipped: dict[torch.device, Tensor]
) -> Iterator[None]:
    bad = _any_non_finite([p.grad for cell in cells for p in cell.params if p.grad is not None])
    told = all(cell.space.fusible for cell in cells)
    if told:
        written = _thermostats(state)
        for cell in cells:
            cell.skip = bad.to(cell.params[0].device)
    else:
        written = _written(cells, state)
    undo = Undo(written)
    try:
        yield
    except BaseException:
        undo.everything_()
        raise
    finally:
        for cell in cells:
            cell.skip = None
    if not told:  # A projection without a root cannot raise here either; what it wrote is put back too.
        bad = bad | _any_non_finite([p.detach() for cell in cells for p in cell.params])
    undo.where_(bad)
    if bad.device not in skipped:
        with torch.inference_mode(False):  # it will be added to outside of that, too
            skipped[bad.device] = torch.zeros((), dtype=torch.int64, device=bad.device)
    skipped[bad.device] += bad


def _refuse_non_finite(cell: Cell, step: int) -> None:
    if math.isfinite(sum(_telltale(p.grad) for p in cell.params if p.grad is not None)):
        return
    for p, name in zip(cell.params, cell.names, strict=True):
        assert p.grad is not None
        if bool(p.grad.isfinite().all()):
            continue
        bad = int((~p.grad.isfinite()).sum())
        raise NonFiniteGradientError(
            f"step {step}: the gradient of {name} has {bad} of {p.grad.numel()} entries NaN or infinite. Nothing was "
            f"changed: weights and state are those of the last good step. Lower lr, clip gradients "
            f"(torch.nn.utils.clip_grad_norm_), or use a GradScaler with half precision."
        )


def _telltale(gradient: Tensor) -> float:
    """A number that is finite only if every entry is. Where it is not, they may still be: a sum overflows by itself."""
    if gradient.numel() < _SMALL:
        return gradient.sum().item()
    least, most = torch.aminmax(gradient)
    return least.item() + most.item()


def _any_non_finite(tensors: list[Tensor]) -> Tensor:
    norms = torch._foreach_norm(tensors, math.inf)
    if any(n.device != norms[0].device or n.dtype != norms[0].dtype for n in norms):
        norms = tuple(n.to(norms[0].device, torch.float32) for n in norms)
    return ~(torch.stack(norms).max() < math.inf)  # nor is NaN


def _thermostats(state: dict[Tensor, dict[str, Any]]) -> list[Tensor]:
    """What moves on the device beside the phases; also where the parameter that keeps it has no gradient."""
    kept = [own[name] for own in state.values() for name in ("thermostat", "clock") if name in own]
    return [x for x in kept if x.is_cuda]


def _written(cells: list[Cell], state: dict[Tensor, dict[str, Any]]) -> list[Tensor]:
    tensors = _thermostats(state)
    kept = {id(x) for x in tensors}
    for cell in cells:
        for p in cell.params:
            tensors.append(p.detach())
            tensors += [x for x in state[p].values() if isinstance(x, Tensor) and id(x) not in kept]
    return tensors
