"""Groups in the terms of ``torch.optim.SGD``: they have a ``momentum`` μ instead of a friction, and their ``lr`` is SGD's.

What a step makes of the two is in :meth:`holonom._step.letters.Numbers.of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import SchemeError
from .letters import plain

_RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")  # what torch's schedulers keep in a group besides lr


class Momentum(NamedTuple):
    """The momentum of a group that :meth:`holonom.Langevin.like_sgd` builds; a bare number means nothing elsewhere."""

    value: float | Tensor


def in_sgd_terms(params: Iterable[Any], momentum: float | Tensor, options: dict[str, Any]) -> list[dict[str, Any]]:
    """The parameters as groups in SGD's terms."""
    _refuse(options)
    given = [params] if isinstance(params, Tensor) else list(params)
    if given and not isinstance(given[0], dict):
        given = [{"params": given}]
    for group in (x for x in given if isinstance(x, dict)):
        _refuse(dict(group))
    unwanted = ("nesterov", "dampening")
    return [
        {**{k: v for k, v in x.items() if k not in unwanted}, "momentum": Momentum(x.get("momentum", momentum))}
        if isinstance(x, dict)
        else x
        for x in given
    ]


def _refuse(options: dict[str, Any]) -> None:
    """Raise for what has no counterpart, unless it is turned off; then forget it."""
    for name in ("nesterov", "dampening"):
        if options.pop(name, None):
            raise ValueError(f"{name} does not carry over: OBA is SGD's plain momentum; leave it out")
    if options.get("friction") is not None:
        raise ValueError(
            "friction and momentum are two names for one number, μ = e^(−γ√lr): like_sgd takes momentum; with a "
            "friction and a time step, build Langevin(params, lr, friction=…)"
        )


def take_terms(group: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """A new group with its momentum as a plain number; raise for a momentum in an optimizer of time steps."""
    momentum = group.get("momentum")
    if isinstance(momentum, Momentum):
        return {**group, "momentum": momentum.value, "friction": None}
    if momentum is not None and defaults.get("momentum") is None:
        raise ValueError(
            f"momentum={momentum!r} of a group has no meaning where lr is a time step; write friction=…, with "
            f"μ = e^(−friction·lr), or build the optimizer by Langevin.like_sgd, whose lr and momentum are SGD's"
        )
    return group


def check(group: dict[str, Any]) -> None:
    """Raise for what a group in SGD's terms cannot have."""
    momentum, word = plain(group["momentum"]), group["scheme"]
    if group["friction"] is not None:
        raise ValueError(
            f"friction={group['friction']!r} of a group with momentum={group['momentum']!r}: they are two names for one "
            f"number, μ = e^(−γ√lr); give one of them (momentum to an optimizer that like_sgd built)"
        )
    if set(word) - set("ABO") or "O" not in word:
        raise SchemeError(f"momentum is what the letter O leaves of p: scheme {word!r} must be over A, B and O, as 'OBA'")
    if not isinstance(momentum, Tensor) or momentum.device.type == "cpu":
        values = torch.as_tensor(momentum, dtype=torch.float64)
        if not bool(((values >= 0) & (values < 1)).all()):
            raise ValueError(f"momentum (μ = e^(−γ√lr)) must lie in [0, 1), got {group['momentum']}")


def converted(group: dict[str, Any]) -> dict[str, Any]:
    """A group of a time step h and a friction γ, as versions up to 0.1.0 wrote it, in SGD's terms: h² and e^{−γh}."""
    h, friction = group["lr"], group["friction"]
    momentum = torch.exp(-friction * h) if isinstance(h * friction, Tensor) else math.exp(-friction * h)
    rates = {name: group[name] ** 2 for name in _RATES if name in group}
    return {**rates, "momentum": momentum, "friction": None}
