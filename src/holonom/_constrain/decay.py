"""Weight decay of what is held on equality spaces: it only pulls weights off them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._step.integrate import Scalar
from ..errors import ConstraintError
from .claims import Claim, is_equality, part_of

COUPLED = (
    torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta,
    torch.optim.Adamax, torch.optim.ASGD,
)  # fmt: skip
"""Optimizers whose decay is a part of the gradient, unless their groups say ``decoupled_weight_decay``."""


def refuse_decay(optimizer: Optimizer, claims: Sequence[Claim], labels: Sequence[str], decay: str | None) -> None:
    """Raise where a group with weight decay has parameters on equality spaces, unless it can be left out."""
    for number, group in enumerate(optimizer.param_groups):
        own = {id(p) for p in group["params"]}
        held = [claim for claim in claims if id(claim.parameter) in own and is_equality(claim.space)]
        if not held or not decays(group):
            continue
        part = part_of(optimizer, group)
        message = _two_groups(part, number, group, held, labels)
        if not is_decoupled(part, group):
            more = f". decay='drop' cannot take it out of a step: {type(part).__name__} makes it a part of the gradient"
            raise ConstraintError(message + (more if decay == "drop" else ""))
        if decay != "drop":
            more = "or pass decay='drop', which leaves lr·weight_decay·weight out of every move"
            raise ConstraintError(f"{message}\n\n{more}")


def decays(group: dict[str, Any]) -> bool:
    return bool(group.get("weight_decay", 0))


def dropped(group: dict[str, Any], decay: str | None) -> Scalar:
    """lr·λ of a group, if its decay is left out of steps."""
    rate = group.get("weight_decay", 0)
    if decay != "drop" or (not isinstance(rate, Tensor) and not rate):
        return 0.0
    found: Scalar = group["lr"] * rate
    return found


def is_decoupled(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether a step's decay is q ← (1 − lr·λ)q, beside what the gradient does; a class of the user's is trusted."""
    if "decoupled_weight_decay" in group:
        return bool(group["decoupled_weight_decay"])
    if isinstance(optimizer, torch.optim.SGD):
        return not group["momentum"]
    return isinstance(optimizer, torch.optim.AdamW) or not isinstance(optimizer, COUPLED)


def _two_groups(
    optimizer: Optimizer, number: int, group: dict[str, Any], held: Sequence[Claim], labels: Sequence[str]
) -> str:
    rules = "".join(
        f'        {label}: {{"weight_decay": 0.0}},\n' for n, label in enumerate(labels) if n in {c.rule for c in held}
    )
    kind, rate = type(optimizer).__name__, group["weight_decay"]
    return (
        f"group {number} of {kind} has weight_decay={float(rate):g}, which pulls {len(held)} tensor(s), such as "
        f"'{held[0].name}', off the space they are held on. Give {kind} these groups:\n\n"
        f"    groups = holonom.partition(model, {{\n{rules}"
        f'        "rest": {{"weight_decay": {float(rate):g}}},\n    }})'
    )
