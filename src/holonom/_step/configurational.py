r"""The temperature of the positions, from the (q, ∇U) that steps are given.

For a vector field f on the manifold, ∫ div(f e^{−U/τ}) = 0 gives τ = ⟨f·∇U⟩/⟨div f⟩. A space says which f it takes
(:meth:`holonom.constraints.Constraint.virial`); here both averages are summed over entries and steps, on the device, in
float64. Momenta do not enter: this temperature shows what a word's step does to the positions, which the kinetic one
does not.

f vanishes at a fixed reference q₀, the weights when recording began. The identity holds for any q₀; near the positions
it has the smallest variance, because the gradients of minibatches, noise included, are multiplied by q − q₀ and not by
q. It holds in equilibrium: record after burn-in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .buckets import RECORDED, Bucket, State, state_dtype
from .integrate import Eager

REFERENCE, SUMS = RECORDED
"""The state of a parameter, and of the first of its group, while temperatures are recorded."""


def begin(params: list[Tensor], state: dict[Tensor, State]) -> None:
    """Take the present weights of a group as reference and set its sums to zero, in place if there are any."""
    for p in params:
        state[p].setdefault(REFERENCE, torch.empty_like(p.detach(), dtype=state_dtype(p))).copy_(p.detach())
    sums = torch.zeros(2, dtype=torch.float64, device=params[0].device)
    state[params[0]].setdefault(SUMS, sums).zero_()


def end(params: list[Tensor], state: dict[Tensor, State]) -> None:
    for p in params:
        state[p].pop(REFERENCE, None)
    state[params[0]].pop(SUMS, None)


def memory(state: dict[Tensor, State]) -> list[int]:
    """Where what is recorded lies: a captured step writes there."""
    return [own[name].data_ptr() for own in state.values() for name in (REFERENCE, SUMS) if name in own]


def record(sums: Tensor, buckets: Sequence[Bucket], backend: Eager, skip: Tensor | None) -> None:
    """Add f·∇U and div f of a step's positions before they move; a skipped step adds nothing."""
    found = [
        (bucket, torch.stack(bucket.space.virial(phase, force, reference)).to(sums))
        for bucket, phases, forces in zip(buckets, backend.phases, backend.forces, strict=True)
        for phase, force, reference in zip(phases, forces, bucket.state_like_phases(REFERENCE), strict=True)
        if force is not None
    ]
    total = backend.total(found)
    sums.add_(total if skip is None else torch.where(skip.to(sums.device), 0.0, total))


def temperature(group: dict[str, Any], number: int, defined: bool, state: dict[Tensor, State]) -> float:
    """⟨f·∇U⟩/⟨div f⟩ of a group; NaN where no such identity is known and before the first step."""
    if not group["params"] or not defined:
        return math.nan
    sums = state[group["params"][0]].get(SUMS)
    if sums is None:
        raise ValueError(
            f"the configurational temperature of group {number} was not recorded: call record_temperatures() after "
            f"burn-in and take steps, whose positions and gradients it is averaged over"
        )
    virial, divergence = sums.tolist()
    return virial / divergence if divergence else math.nan
