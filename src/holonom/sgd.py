"""The settings of ``torch.optim.SGD`` as a time step and a friction: μ = e^{−γh} and lr = h²."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def as_langevin(params: Iterable[Any], lr: float, momentum: float) -> tuple[list[Any], float, float]:
    """The parameters, h and γ; groups with an ``lr`` or a ``momentum`` of their own get an h and a γ of their own."""
    given = [dict(x) if isinstance(x, dict) else x for x in params]
    for group in given:
        if isinstance(group, dict) and group.keys() & {"lr", "momentum"}:
            own = _converted(group.pop("lr", lr), group.pop("momentum", momentum))
            group["lr"], group["friction"] = own
    return given, *_converted(lr, momentum)


def _converted(lr: float, momentum: float) -> tuple[float, float]:
    if not lr > 0:
        raise ValueError(f"lr must be positive to stand for a time step, got {lr}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum (μ = e^(−γh)) must lie in [0, 1), got {momentum}")
    h = math.sqrt(lr)
    return h, -math.log(momentum) / h if momentum > 0 else math.inf
