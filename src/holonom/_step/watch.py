"""Thermostats that do not hold their temperature: found where the host may look, and said once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .._lines import users_line
from ..errors import ThermostatError
from .thermostat import STEPS

RUNAWAY = 20.0  # of h·|ξ|, where ε is given: momenta are multiplied by e^∓20 in every step
STRAINED = 0.5  # of h·|ξ|: noise of gradients that needs more friction makes positions 6 % too warm, at 1 22 %
TOO_SHORT = 5  # steps: shorter thermostat times make positions more than 2 % too cold

Thermostat = tuple[int, dict[str, Any], Tensor]  # the number of a group, the group, its ξ


class Watch:
    """Looks for thermostats that do not hold their temperature, and warns once for every group.

    *Runaway*: ξ is NaN or infinite, or h·|ξ| > 20 where ``coupling`` is given (a derived one is bounded). *Strained*:
    h·|ξ| > ½ where it is derived, for a thousand steps. *Too short*: h > t/5.
    On a CPU every sixteenth step looks; on devices, and in compiled training, ``check()``, ``residuals()`` and
    ``state_dict()`` do.
    """

    EVERY, PATIENCE = 16, 64

    def __init__(self) -> None:
        self.strained: dict[int, int] = {}  # looks in a row
        self.warned: set[int] = set()

    def look_at_step(self, groups: Iterable[Thermostat]) -> None:
        for number, group, xi in groups:
            if group["step"] % self.EVERY == 0 and number not in self.warned and xi.device.type == "cpu":
                found = strained(group, xi)
                self.strained[number] = self.strained.get(number, 0) + 1 if found else 0
                if runaway(group, xi) or too_short(group) or self.strained[number] >= self.PATIENCE:
                    self.look([(number, group, xi)])

    def look(self, groups: Iterable[Thermostat], fatal: bool = False) -> None:
        """Read ξ and warn; with ``fatal``, raise for a runaway."""
        for number, group, xi in groups:
            reason = runaway(group, xi)
            if reason and fatal:
                raise ThermostatError(f"group {number}: {reason}")
            reason = reason or too_short(group)
            if group["step"] >= self.EVERY * self.PATIENCE:  # a start far from equilibrium takes its time
                reason = reason or strained(group, xi)
            if reason and number not in self.warned:
                self.warned.add(number)
                warnings.warn(f"group {number}: {reason}", stacklevel=users_line())


def _damping(group: dict[str, Any], xi: Tensor) -> float:
    """The largest h·|ξ| of any replica."""
    h = group["lr"] * group.get("every", 1)
    return float((xi * torch.as_tensor(h).to(xi)).abs().max()) if xi.numel() else 0.0


def runaway(group: dict[str, Any], xi: Tensor) -> str | None:
    size = _damping(group, xi)
    if math.isfinite(size) and (size <= RUNAWAY or group["coupling"] is None):
        return None
    return (
        f"the thermostat has run away: h·ξ is {size:.3g}, so that momenta vanish or explode in every step. Leave out "
        f"coupling and driving_noise, which depend on the temperature and on the number of parameters, and they are "
        f"derived from thermostat_time; or lower lr"
    )


def strained(group: dict[str, Any], xi: Tensor) -> str | None:
    """At τ = 0 a derived thermostat damps as strongly as it may, and is meant to."""
    warm = torch.as_tensor(group["temperature"]).to(xi) > 0
    size = _damping(group, xi.where(warm, torch.zeros_like(xi)))
    if group["coupling"] is not None or size <= STRAINED:
        return None
    return (
        f"the thermostat damps momenta by h·ξ = {size:.2g} a step and is made for up to {STRAINED}: either the noise "
        f"of the gradients is too strong for this step and temperature, and positions are too warm (lower lr or take "
        f"larger batches), or the run is still far from equilibrium"
    )


def too_short(group: dict[str, Any]) -> str | None:
    h, time = group["lr"] * group.get("every", 1), group["thermostat_time"]
    if group["coupling"] is not None or isinstance(h, Tensor) or isinstance(time, Tensor) or time is None:
        return None
    if time >= TOO_SHORT * h:
        return None
    return (
        f"thermostat_time is {time:g}, less than {TOO_SHORT} steps of lr = {h:g}: positions are too cold by 2 % or "
        f"more. It is {STEPS} times the lr at construction unless it is given; give thermostat_time={STEPS * h:g}"
    )


def thermostats(groups: list[dict[str, Any]], state: dict[Tensor, dict[str, Any]]) -> list[Thermostat]:
    """The groups that have one."""
    return [
        (number, group, state[group["params"][0]]["thermostat"])
        for number, group in enumerate(groups)
        if "E" in group["scheme"] and group["params"]
    ]
