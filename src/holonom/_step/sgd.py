"""Groups in the terms of ``torch.optim.SGD``: a ``momentum`` μ instead of a friction, and SGD's ``lr``.

What a step makes of the two is in :meth:`holonom._step.letters.Numbers.made`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import SchemeError
from .letters import damping, plain

_RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")  # what torch's schedulers keep in a group besides lr


class Momentum(NamedTuple):
    """The momentum of a group that :meth:`holonom.Langevin.like_sgd` builds; a bare number means nothing elsewhere."""

    value: float | Tensor


def in_sgd_terms(params: Iterable[Any], momentum: float | Tensor, options: dict[str, Any]) -> list[Any]:
    """The parameters as groups in SGD's terms."""
    _refuse(options)
    given: list[Any] = [params] if isinstance(params, Tensor) else list(params)
    if given and not isinstance(given[0], dict):
        given = [{"params": given}]
    given = [dict(x) if isinstance(x, dict) else x for x in given]
    for group in (x for x in given if isinstance(x, dict)):
        _refuse(group)
        group["momentum"] = Momentum(group.get("momentum", momentum))
    return given


def _refuse(options: dict[str, Any]) -> None:
    """Raise for what has no counterpart, unless it is turned off; then remove it."""
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
            f"friction={group['friction']!r} of a group with momentum={group['momentum']!r}: they are two names for "
            f"one number, μ = e^(−γ√lr); give one of them (momentum to an optimizer that like_sgd built)"
        )
    if set(word) - set("ABO") or "O" not in word:
        raise SchemeError(
            f"momentum is what the letter O leaves of p: scheme {word!r} must be over A, B and O, as 'OBA'"
        )
    if not isinstance(momentum, Tensor) or momentum.device.type == "cpu":
        values = torch.as_tensor(momentum, dtype=torch.float64)
        if not bool(((values >= 0) & (values < 1)).all()):
            raise ValueError(f"momentum (μ = e^(−γ√lr)) must lie in [0, 1), got {group['momentum']}")


def converted(group: dict[str, Any], momentum: float | Tensor) -> dict[str, Any]:
    """What changes of a group of a time step h and a friction γ: h² and e^{−γh}, or ``momentum`` where h = 0."""
    h = plain(group["lr"])
    left = damping(plain(group["friction"]), h)
    if isinstance(h, Tensor):
        momentum = torch.where(h > 0, left, momentum)
    elif h:
        momentum = left
    return {**{name: group[name] ** 2 for name in _RATES if name in group}, "momentum": momentum, "friction": None}
