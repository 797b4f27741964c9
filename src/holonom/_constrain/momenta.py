"""An optimizer's momenta along the spaces that its weights are held on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from .._lines import users_line
from .._torch import full_precision
from ..constraints import Constraint
from ..constraints.base import widened
from ..errors import ConstraintError
from .claims import Claim

NAMES = ("exp_avg", "momentum_buffer")


def check_momenta(claims: Sequence[Claim]) -> None:
    for claim in claims:
        if type(claim.space).project_step_ is Constraint.project_step_:
            raise ConstraintError(f"{claim.space!r} on '{claim.name}' has no tangent space: use momentum='keep'")


@torch.no_grad()
@full_precision()
def project_momenta_(optimizer: Optimizer, claims: Sequence[Claim]) -> int:
    """Remove from momenta what points off the manifold; of a bound, where a step along −m would leave it.

    Returns how many there were.
    """
    count = 0
    for claim in claims:
        state = optimizer.state.get(claim.parameter) or {}
        for name in NAMES:
            momentum = state.get(name)
            if momentum is None:
                continue
            step = claim.space.view(widened(momentum).neg())  # optimizers move along −m
            step = step.clone()
            claim.space.project_step_(claim.phase(), step)
            claim.space.write_(momentum, step.neg_().to(momentum.dtype))
            count += 1
    return count


def warn_without_momenta(optimizer: Optimizer) -> None:
    warnings.warn(
        f"momentum='project' found no {' or '.join(NAMES)} in the state of {type(optimizer).__name__}, so that there "
        f"is nothing to project",
        stacklevel=users_line(),
    )
