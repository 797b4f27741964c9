"""The letters' coefficients: numbers of a group in, the numbers each letter multiplies by out.

A new letter is a row of :data:`LETTERS`, a branch of :func:`holonom._step.integrate.integrate`, and a meaning in
:mod:`holonom.scheme`.
Floats in, floats out. A tensor anywhere (an lr on the device, a temperature per replica, the thermostat ξ) makes the
result a tensor: nothing is read back to the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch import cached
from ..scheme import Op
from . import thermostat
from .accuracy import position_temperature
from .integrate import Scalar

Coefficients = tuple[Scalar, ...]

NUMBERS = (
    "lr", "friction", "temperature", "coupling", "driving_noise", "weight_decay", "momentum", "thermostat_time",
    "thermostat_friction",
)  # fmt: skip
"""What a step reads of a group. Groups in SGD's terms have a ``momentum``, all others a ``friction``."""


class Numbers(NamedTuple):
    """The hyperparameters that a step reads: its h, the h owed from the step before, and the physics.

    Drifts last ``drift``, which is h except in SGD's terms; there momenta are first multiplied by ``rescale``.
    """

    h: Scalar
    owed: Scalar
    friction: Scalar
    temperature: Scalar
    coupling: Scalar | None  # None: derived from the two numbers of the thermostat
    driving_noise: Scalar | None
    weight_decay: Scalar
    drift: Scalar
    rescale: Scalar = 1.0
    thermostat_time: Scalar | None = None
    thermostat_friction: Scalar | None = None

    @classmethod
    def of(cls, group: dict[str, Any], lr: Scalar, owed: Scalar) -> Numbers:
        """The numbers of a step with this lr, which is h, or SGD's where the group has a ``momentum``."""
        return cls.made(read_settings(group), lr, owed)

    @classmethod
    def made(cls, settings: dict[str, Any], lr: Scalar, owed: Scalar) -> Numbers:
        """From settings that were read from a group.

        SGD keeps a velocity: v ← μv + ∇L, θ ← θ − lr·v. With p = −h·v and h = √lr that is the word OBA, μ = e^{−γh}.
        A schedule leaves v alone, so p is rescaled by the new h over the last. At lr = 0, where nothing is to drift, v
        goes on in the last h. Noise is drawn at the temperature that puts the *positions* of the word at τ.
        """
        names = ("friction", "temperature", "coupling", "driving_noise", "weight_decay", "momentum")
        friction, temperature, coupling, driving_noise, weight_decay, momentum = (settings[x] for x in names)
        if momentum is None:
            derived = (settings["thermostat_time"], settings["thermostat_friction"])
            return cls(lr, owed, friction, temperature, coupling, driving_noise, weight_decay, lr, 1.0, *derived)
        h = _or(_sqrt(lr), _or(owed, 1.0))
        if isinstance(temperature, Tensor) or temperature:
            temperature = temperature / position_temperature(settings["scheme"], momentum)
        friction, rescale = _friction(momentum, h), h / _or(owed, h)
        return cls(h, rescale * owed, friction, temperature, coupling, driving_noise, weight_decay, lr / h, rescale)

    @property
    def on_host(self) -> bool:
        return all(type(x) is float or x is None for x in self)

    @property
    def diffusion(self) -> Scalar:
        """σ_A of the letters D and F."""
        return thermostat.driving_noise(self)

    def time(self, op: Op) -> Scalar:
        """How long a letter acts: its share of the step before, where that was moved here, and of this one."""
        if op.letter == "A":
            return op.head * self.drift
        if not op.tail:
            return op.head * self.h
        return op.tail * self.owed + op.head * self.h if op.head else op.tail * self.owed


def read_settings(group: dict[str, Any]) -> dict[str, Any]:
    """A group's word and numbers as the user gave them; None for what it does not have."""
    numbers = {name: x if (x := group.get(name)) is None or type(x) is float else plain(x) for name in NUMBERS}
    return {**numbers, "scheme": group["scheme"]}


def plain(value: Any) -> Scalar:
    """One number as a float where the host has it, as a 0-dim tensor where a device has it; (R,) tensors stay."""
    if type(value) is float:
        return value
    if isinstance(value, Tensor) and (value.numel() != 1 or value.device.type != "cpu"):
        return value.reshape(()) if value.numel() == 1 else getattr(value, "plain", value)
    return float(value)


def _exp(x: Scalar) -> Scalar:
    return torch.exp(x) if isinstance(x, Tensor) else math.exp(x)


def _sqrt(x: Scalar) -> Scalar:
    return torch.sqrt(x) if isinstance(x, Tensor) else math.sqrt(x)


def _or(x: Scalar, other: Scalar) -> Scalar:
    """x where it is positive, ``other`` elsewhere."""
    if isinstance(x, Tensor):
        return torch.where(x > 0, x, other)
    return x if x > 0 else other


def _friction(momentum: Scalar, h: Scalar) -> Scalar:
    """The γ of e^{−γh} = μ; infinite where nothing is left."""
    if isinstance(momentum, Tensor):
        return -torch.log(momentum) / h
    return -math.log(momentum) / h if momentum else math.inf


class PartlyOwed(NamedTuple):
    """A time of which a device holds a part, what the step before owes: now + share·owed."""

    now: float
    share: float
    owed: Tensor

    def total(self) -> Tensor:
        return self.now + self.share * self.owed


def damping(friction: Scalar, t: Scalar) -> Scalar:
    """What O leaves of a momentum, e^{−γt}; all of it at t = 0, whatever γ is."""
    return _exp(-_times(friction, t))


def _times(a: Scalar, b: Scalar) -> Scalar:
    """a·b with 0·∞ = 0."""
    product = a * b
    if isinstance(product, Tensor):
        return torch.nan_to_num(product, nan=0.0, posinf=math.inf, neginf=-math.inf)
    return 0.0 if 0.0 in (a, b) else product


def _time(t: Scalar, numbers: Numbers, xi: Tensor | None) -> Coefficients:
    return (t,)


def _ornstein_uhlenbeck(t: Scalar, numbers: Numbers, xi: Tensor | None) -> Coefficients:
    c = damping(numbers.friction, t)
    return c, _sqrt(numbers.temperature * (1 - c * c))


def _thermostat_friction(t: Scalar, numbers: Numbers, xi: Tensor | None) -> Coefficients:
    assert xi is not None
    return torch.exp(-t * xi), 0.0


def _diffusion(t: Scalar, numbers: Numbers, xi: Tensor | None) -> Coefficients:
    return 1.0, numbers.diffusion * _sqrt(t)


def _thermostat_ornstein_uhlenbeck(t: Scalar, numbers: Numbers, xi: Tensor | None) -> Coefficients:
    """∫₀ᵗ e^{−2ξs} ds = t·φ(2ξt) with φ(x) = (1 − e^{−x})/x, φ(0) = 1, also for negative ξ."""
    assert xi is not None
    x = 2 * t * xi
    phi = torch.where(x.abs() < 1e-6, 1 - x / 2, -torch.expm1(-x) / torch.where(x == 0, torch.ones_like(x), x))
    return torch.exp(-t * xi), numbers.diffusion * _sqrt(t) * torch.sqrt(phi)


def _euler_maruyama(t: Scalar, numbers: Numbers, xi: Tensor | None) -> Coefficients:
    return t, _sqrt(2 * numbers.temperature * t)


class Letter(NamedTuple):
    """A row of the table: the letter's coefficients, and the number that sizes its noise, if it has any."""

    coefficients: Callable[[Scalar, Numbers, Tensor | None], Coefficients]
    noise: str | None = None


LETTERS = {
    "A": Letter(_time),
    "B": Letter(_time),
    "O": Letter(_ornstein_uhlenbeck, noise="temperature"),
    "C": Letter(_thermostat_friction),
    "D": Letter(_diffusion, noise="diffusion"),
    "F": Letter(_thermostat_ornstein_uhlenbeck, noise="diffusion"),
    "L": Letter(_euler_maruyama, noise="temperature"),
    "M": Letter(_euler_maruyama, noise="temperature"),
}


class Ready(NamedTuple):
    """A letter with its coefficients, and the number of its draw or None."""

    letter: str
    numbers: Any  # coefficients; after to(), floats and tensors
    draw: int | None

    def to(self, like: Tensor) -> Ready:
        """Tensors in the dtype and on the device of what they multiply."""
        if all(isinstance(x, float) for x in self.numbers):
            return self
        totals = [x.total() if isinstance(x, PartlyOwed) else x for x in self.numbers]
        numbers = tuple(x.to(like) if isinstance(x, Tensor) else x for x in totals)
        return Ready(self.letter, numbers, self.draw)  # torch 2.6 cannot trace _replace()


def is_noisy(letter: str, numbers: Numbers) -> bool:
    """Whether the letter needs normals. A tensor is never read, so it counts as noise."""
    noise = LETTERS[letter].noise if letter in LETTERS else None
    size = noise and getattr(numbers, noise)
    return isinstance(size, Tensor) or bool(size)


def make_ready(
    ops: tuple[Op, ...], first_draw: int, numbers: Numbers, xi: Tensor | None, geodesic: bool
) -> Sequence[Ready]:
    """The letters of a stage with their coefficients; draws are numbered by the letter's place in the program.

    ``geodesic``: drifts are exact, so that they add up.
    """
    if xi is not None:
        return _make_ready(ops, first_draw, numbers, xi, geodesic)
    if numbers.on_host:
        return _cached(ops, first_draw, numbers, geodesic)
    owed, rest = numbers.owed, numbers._replace(owed=0.0)
    if isinstance(owed, Tensor) and not owed.ndim and rest.on_host and _owes_a_kick(ops):
        kick, *others = _cached(ops, first_draw, rest, geodesic)
        return [Ready("B", (PartlyOwed(kick.numbers[0], ops[0].tail, owed),), None), *others]
    return _make_ready(ops, first_draw, numbers, xi, geodesic)


def _owes_a_kick(ops: Sequence[Op]) -> bool:
    """Whether a kick, which comes first, is all that is owed; its coefficient is a time."""
    return ops[0].letter == "B" and ops[0].tail > 0 and not any(op.tail for op in ops[1:])


def _make_ready(
    ops: tuple[Op, ...], first_draw: int, numbers: Numbers, xi: Tensor | None, geodesic: bool
) -> Sequence[Ready]:
    ready = []
    for place, op in enumerate(ops):
        coefficients = LETTERS[op.letter].coefficients(numbers.time(op), numbers, xi)
        ready.append(Ready(op.letter, coefficients, first_draw + place if is_noisy(op.letter, numbers) else None))
    if isinstance(numbers.rescale, Tensor) or numbers.rescale != 1.0:
        rescale_first(ready, numbers.rescale)
    return joined(ready) if geodesic else ready


def rescale_first(ready: list[Ready], factor: Scalar) -> None:
    """Multiply the momenta before anything else: in the first letter where that is O, else by a letter of its own."""
    if ready[0].letter == "O":
        damping, size = ready[0].numbers
        ready[0] = Ready("O", (factor * damping, size), ready[0].draw)
    else:
        ready.insert(0, Ready("O", (factor, 0.0), None))


@cached
def _cached(ops: tuple[Op, ...], first_draw: int, numbers: Numbers, geodesic: bool) -> Sequence[Ready]:
    return tuple(_make_ready(ops, first_draw, numbers, None, geodesic))


def joined(ops: Sequence[Ready]) -> list[Ready]:
    """The same flow with fewer drifts, where drifts are geodesics and no noise acts between them.

    Damping only slows the motion down along its geodesic: A(s) O A(t) = A(s + c·t) O with p ← c·p, and A(s) A(t) =
    A(s + t). Without noise, BAOAB drifts once.
    """
    kept: list[Ready] = []
    for op in ops:
        before = "".join(one.letter for one in kept[-2:])
        if op.letter == "A" and before.endswith("A"):
            kept[-1] = Ready("A", (kept[-1].numbers[0] + op.numbers[0],), None)
        elif op.letter == "A" and before == "AO" and kept[-1].draw is None:
            kept[-2] = Ready("A", (kept[-2].numbers[0] + kept[-1].numbers[0] * op.numbers[0],), None)
        else:
            kept.append(op)
    return kept
