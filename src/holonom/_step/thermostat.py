r"""The adaptive thermostat in words of time: ε and σ_A from a thermostat time t, a friction γ and the temperature τ.

The letters C, D and E are dp = −ξp dt + σ_A dW and ξ̇ = ε(pᵀp − Nτ). Their invariant law has ξ normal about
γ = σ_A²/(2τ) with variance ετ. The papers give ε and σ_A as numbers; which numbers are right depends on N and τ by
orders of magnitude. Here they are derived, unless the group gives them:

    ε = 1/(Nτt²),  so that ξ̇ = (T/τ − 1)/t² with T = pᵀp/N,    and    σ_A = √(2γτ) with γ = 1/t by default.

N is the number of degrees of freedom of a replica that move at this step. A temperature that changes is followed at the
next step, on the device if it is there.

The default of t is :data:`STEPS` steps, 20·lr as lr is at construction: γh = 1/20 damps like a momentum of 0.95, and
the choice does not depend on whether a loss is a sum or a mean, which only changes the unit of time. Measured on
oscillators with hω from 0.03 to 1 (N = 10 and 10⁴, noise of gradients from 0 to h²σ²/(2τ) = 0.2, from rest and from ten
times the spread), the variance of positions over 3000 steps is within 2 % of τ at 10 to 30 steps, 6 % low at 3 (the
thermostat swings within a few steps), and up to 26 % off at 100 (it has not arrived yet).

A derived thermostat keeps |ξ| ≤ 1/h. Without a bound a start far from equilibrium, T/τ ≫ 1, drives ξ to √(T/τ)/t and
beyond, and the way back takes t² a unit of ξ: weights stand still for 10⁵ steps. Momenta that lose 1 − 1/e a step cool
as fast as is useful, and ξ is back after (t/h)² steps. In equilibrium the bound is not reached unless gradients are
so noisy, h²σ²/(2τ) ≈ 1, that no thermostat could hold the positions' temperature at this step (see
:mod:`holonom._step.watch`).
At τ = 0 the bound is also the limit: σ_A = 0 and ξ = 1/h, damped descent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .integrate import Scalar

if TYPE_CHECKING:
    from .letters import Numbers

STEPS = 20
"""The default thermostat time, in steps."""
BOUND = 1.0  # of h·|ξ|, where ε is derived
LARGEST_EXCESS = 1e30  # of T/τ at τ = 0


def check_time(group: dict[str, Any]) -> None:
    if _has_zero(time := group["thermostat_time"]):
        raise ValueError(f"thermostat_time (t) must be positive, got {time}: it is a time, of about {STEPS} steps")


def check(group: dict[str, Any]) -> None:
    """Refuse numbers from which nothing can be derived."""
    check_time(group)
    word, time = group["scheme"], group["thermostat_time"]
    noisy = bool(set(word) & set("DF"))
    if noisy and "E" not in word and group["driving_noise"] is None:
        raise ValueError(
            f"scheme {word!r} has noise of its own (D) but no thermostat (E) that would set its size: give "
            f"driving_noise (σ_A), 0 for none"
        )
    if "E" not in word:
        return
    missing = ["coupling"] if group["coupling"] is None else []
    missing += ["driving_noise"] if noisy and group["driving_noise"] is None else []
    if missing and _has_zero(group["temperature"]):
        raise ValueError(
            f"scheme {word!r} at temperature 0: {' and '.join(missing)} cannot be derived, because there is no "
            f"temperature to hold. Give a positive temperature, or coupling= and driving_noise= (0.1 and 0, say, train "
            f"without noise)"
        )
    if missing and time is None and _has_zero(group["lr"]):
        raise ValueError(
            f"scheme {word!r} with lr = 0: the thermostat time is {STEPS} steps unless it is given; give "
            f"thermostat_time (about {STEPS} times the lr of the run), or coupling and driving_noise"
        )


def _has_zero(value: Any) -> bool:
    """A tensor on a device is not read."""
    if isinstance(value, Tensor):
        return value.device.type == "cpu" and bool((value == 0).any())
    return value is not None and value == 0


def complete(group: dict[str, Any]) -> None:
    """Fix the thermostat time of a new group, where it is used: an lr that is scheduled does not move it."""
    derived = group["coupling"] is None or group["driving_noise"] is None
    if "E" in group["scheme"] and derived and group["thermostat_time"] is None:
        from .letters import plain  # which needs this module

        time = STEPS * plain(group["lr"]) * group.get("every", 1)
        group["thermostat_time"] = torch.where(time > 0, time, 1.0) if isinstance(time, Tensor) else time


def at_start(group: dict[str, Any]) -> Scalar:
    """ξ of a new group: γ, its mean without noise of gradients; the papers' 0 where ε or σ_A is given."""
    given = group["coupling"] is not None or group["driving_noise"] is not None
    if given or not set(group["scheme"]) & set("DF"):
        return 0.0
    return friction(group)


def friction(group: dict[str, Any]) -> Scalar:
    """γ of the derived σ_A, 1/t by default."""
    given: Scalar | None = group["thermostat_friction"]
    time: Scalar | None = group["thermostat_time"]
    return 1 / (STEPS * group["lr"] if time is None else time) if given is None else given


def time_of(numbers: Numbers) -> Scalar:
    return STEPS * _step_of(numbers) if numbers.thermostat_time is None else numbers.thermostat_time


def _step_of(numbers: Numbers) -> Scalar:
    """h, also where only what is owed from the last step is paid."""
    return numbers.owed if isinstance(numbers.h, float) and numbers.h == 0.0 else numbers.h


def driving_noise(numbers: Numbers) -> Scalar:
    """σ_A as given, or √(2γτ)."""
    if numbers.driving_noise is not None:
        return numbers.driving_noise
    if not isinstance(numbers.temperature, Tensor) and numbers.temperature == 0:
        return 0.0  # also where γ is a tensor: no noise is drawn
    gamma = 1 / time_of(numbers) if numbers.thermostat_friction is None else numbers.thermostat_friction
    square = 2 * gamma * numbers.temperature
    return torch.sqrt(square) if isinstance(square, Tensor) else math.sqrt(square)


def updated(xi: Tensor, time: Scalar, numbers: Numbers, kinetic: Tensor, freedom: float) -> Tensor:
    """E: ξ += time·ε·(pᵀp − N·τ), within the bound where ε is derived. ``kinetic`` is pᵀp."""
    tau = numbers.temperature
    if not freedom:  # nothing can move, so there is no temperature to hold
        return xi
    if numbers.coupling is not None:
        return xi + time * numbers.coupling * (kinetic - freedom * tau)
    least = torch.finfo(xi.dtype).tiny
    tau = tau.clamp(min=least) if isinstance(tau, Tensor) else max(tau, least)
    excess = (kinetic / (freedom * tau) - 1).clamp(max=LARGEST_EXCESS)
    xi = xi + time * excess / (time_of(numbers) * time_of(numbers))
    h = _step_of(numbers)
    if isinstance(h, Tensor):
        return torch.minimum(torch.maximum(xi, -BOUND / h.to(xi)), BOUND / h.to(xi))
    return xi.clamp(-BOUND / h, BOUND / h)
