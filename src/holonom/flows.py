"""One short in-place function per letter, the numbers it needs, and the table of both.

A flow moves one phase along one part of the dynamics. It knows nothing of constraints beyond the
three verbs every space has (``kick_``, ``project_``, ``drift_``; ``descend_`` for overdamped steps),
so adding a letter is one function here and one row of the table. (E, which sees all cells of a group
at once, acts in :mod:`.engine`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .constraints.base import Constraint, Phase
from .lists import Scalar, Tensors, add_scaled_, copy_, scale_
from .undo import Undo

Numbers = tuple[Scalar, ...]


class Physics(NamedTuple):
    """The hyperparameters of a group that the letters read."""

    friction: Scalar
    temperature: Scalar
    coupling: Scalar
    driving_noise: Scalar


# ── the letters ──────────────────────────────────────────────────────────────────────────────────


def drift(space: Constraint, phase: Phase, force: Tensors, numbers: Numbers, noise: Tensors) -> None:
    space.drift_(phase, numbers[0])


def kick(space: Constraint, phase: Phase, force: Tensors, numbers: Numbers, noise: Tensors) -> None:
    space.kick_(phase, force, numbers[0])


def damp_and_diffuse(space: Constraint, phase: Phase, force: Tensors, numbers: Numbers, noise: Tensors) -> None:
    """p ← c·p + s·Π R: the letters O, C (s = 0), D (c = 1) and F."""
    damping, amplitude = numbers
    if not (isinstance(damping, float) and damping == 1.0):
        scale_(phase.momenta, damping)
    if noise:
        space.project_(phase, noise)
        add_scaled_(phase.momenta, noise, amplitude)


def overdamped(space: Constraint, phase: Phase, force: Tensors, numbers: Numbers, noise: Tensors) -> None:
    """q ← the manifold's point for q − h∇L + √(2τh) R."""
    h, amplitude = numbers
    space.descend_(phase, force, h, noise, amplitude)


def overdamped_averaged(space: Constraint, phase: Phase, force: Tensors, numbers: Numbers, noise: Tensors) -> None:
    """The BAOAB limit (2.56): the noise is the mean of this step's draw and the last one's.

    Flat space only; ``phase.p`` holds the last step's normals.
    """
    h, amplitude = numbers
    add_scaled_(phase.q, force, -h)
    if noise:
        add_scaled_(phase.q, phase.p, amplitude / 2)
        add_scaled_(phase.q, noise, amplitude / 2)
        copy_(phase.p, noise)


# ── the numbers ──────────────────────────────────────────────────────────────────────────────────
# Each takes the time the letter acts for, the group's physics and its thermostat variable ξ. Floats
# in, floats out; a tensor anywhere (an lr on the device, a temperature per replica, ξ) makes the
# result a tensor, so that nothing is read back to the host.


def _exp(x: Scalar) -> Scalar:
    return torch.exp(x) if isinstance(x, Tensor) else math.exp(x)


def _sqrt(x: Scalar) -> Scalar:
    return torch.sqrt(x) if isinstance(x, Tensor) else math.sqrt(x)


def _times(a: Scalar, b: Scalar) -> Scalar:
    """a·b with 0·∞ = 0."""
    if isinstance(a, float) and isinstance(b, float):
        return 0.0 if 0.0 in (a, b) else a * b
    return torch.nan_to_num(torch.as_tensor(a * b), nan=0.0, posinf=math.inf, neginf=-math.inf)


def _time(t: Scalar, physics: Physics, xi: Tensor | None) -> Numbers:
    return (t,)


def _ornstein_uhlenbeck(t: Scalar, physics: Physics, xi: Tensor | None) -> Numbers:
    damping = _exp(-_times(physics.friction, t))
    return damping, _sqrt(physics.temperature * (1 - damping * damping))


def _thermostat_friction(t: Scalar, physics: Physics, xi: Tensor | None) -> Numbers:
    assert xi is not None
    return torch.exp(-t * xi), 0.0


def _diffusion(t: Scalar, physics: Physics, xi: Tensor | None) -> Numbers:
    return 1.0, physics.driving_noise * _sqrt(t)


def _thermostat_ornstein_uhlenbeck(t: Scalar, physics: Physics, xi: Tensor | None) -> Numbers:
    """∫₀ᵗ e^{−2ξs} ds = t·φ(2ξt), φ(x) = (1 − e^{−x})/x, which is 1 at 0 and valid for negative ξ."""
    assert xi is not None
    x = 2 * t * xi
    phi = torch.where(x.abs() < 1e-6, 1 - x / 2, -torch.expm1(-x) / torch.where(x == 0, torch.ones_like(x), x))
    return torch.exp(-t * xi), physics.driving_noise * _sqrt(t) * torch.sqrt(phi)


def _euler_maruyama(t: Scalar, physics: Physics, xi: Tensor | None) -> Numbers:
    return t, _sqrt(2 * physics.temperature * t)


Flow = Callable[[Constraint, Phase, Tensors, Numbers, Tensors], None]


class Letter(NamedTuple):
    """A row of the table: the flow, its numbers, and the hyperparameter that sizes its noise, if any."""

    flow: Flow
    numbers: Callable[[Scalar, Physics, Tensor | None], Numbers]
    noise: str | None = None


LETTERS = {
    "A": Letter(drift, _time),
    "B": Letter(kick, _time),
    "O": Letter(damp_and_diffuse, _ornstein_uhlenbeck, noise="temperature"),
    "C": Letter(damp_and_diffuse, _thermostat_friction),
    "D": Letter(damp_and_diffuse, _diffusion, noise="driving_noise"),
    "F": Letter(damp_and_diffuse, _thermostat_ornstein_uhlenbeck, noise="driving_noise"),
    "L": Letter(overdamped, _euler_maruyama, noise="temperature"),
    "M": Letter(overdamped_averaged, _euler_maruyama, noise="temperature"),
}


def is_noisy(letter: str, physics: Physics) -> bool:
    """Whether the letter needs normals at all; a tensor is never read, so it counts as yes."""
    amplitude = LETTERS[letter].noise
    if amplitude is None:
        return False
    value = getattr(physics, amplitude)
    return isinstance(value, Tensor) or value > 0


def run(
    space: Constraint,
    word: str,
    phase: Phase,
    force: Tensors,
    numbers: Sequence[Numbers],
    noises: Sequence[Tensors],
    step: int,
    last: bool,
) -> None:
    """Run consecutive letters; ``last`` ones end the step, after which the space settles."""
    space = space.loose
    for letter, values, noise in zip(word, numbers, noises, strict=True):
        LETTERS[letter].flow(space, phase, force, values, noise)
    if last:
        space.settle_(phase, step)


def run_unless(
    skip: Tensor | None,
    space: Constraint,
    word: str,
    phase: Phase,
    force: Tensors,
    numbers: Sequence[Numbers],
    noises: Sequence[Tensors],
    step: int,
    last: bool,
) -> None:
    """The same, but a true ``skip`` (a tensor, never read by the host) leaves the phase as it is."""
    if skip is None:
        run(space, word, phase, force, numbers, noises, step, last)
        return
    tensors = [x for xs in phase for x in xs]
    if not torch.compiler.is_compiling():
        undo = Undo(tensors)
        run(space, word, phase, force, numbers, noises, step, last)
        undo.where_(skip)
        return
    before = [x.clone() for x in tensors]
    run(space, word, phase, force, numbers, noises, step, last)
    for now, old in zip(tensors, before, strict=True):
        now.copy_(torch.where(skip, old, now))  # out= is not traced where memory has gaps
