"""The settings of ``torch.optim.SGD`` as a time step and a friction: μ = e^{−γh} and lr = h²."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor


def as_langevin(params: Iterable[Any], lr: float, momentum: float) -> tuple[list[Any], float, float]:
    """The parameters, h and γ; groups with an ``lr`` or a ``momentum`` of their own get an h and a γ of their own."""
    given = [params] if isinstance(params, Tensor) else [dict(x) if isinstance(x, dict) else x for x in params]
    for group in given:
        if isinstance(group, dict):
            refuse(group)
            if group.keys() & {"lr", "momentum"}:
                group["lr"], friction = _converted(group.pop("lr", lr), group.pop("momentum", momentum))
                group.setdefault("friction", friction)
    return given, *_converted(lr, momentum)


def refuse(options: dict[str, Any]) -> None:
    """Raise for what has no counterpart, unless it is turned off; then forget it."""
    for name in ("nesterov", "dampening"):
        if options.pop(name, None):
            raise ValueError(f"{name} does not carry over: OBA is SGD's plain momentum; leave it out")


def _converted(lr: float, momentum: float) -> tuple[float, float]:
    if not lr > 0:
        raise ValueError(f"lr must be positive to stand for a time step, got {lr}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum (μ = e^(−γh)) must lie in [0, 1), got {momentum}")
    h = math.sqrt(lr)
    return h, -math.log(momentum) / h if momentum > 0 else math.inf
