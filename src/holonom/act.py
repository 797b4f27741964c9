"""An act: consecutive letters of a program made ready to run, with the numbers they take and the noise they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from .flows import LETTERS, Numbers, Physics, is_noisy
from .lists import Scalar
from .scheme import Op

Ready = tuple[str, Numbers, int | None]  # a letter, its numbers, and which draw of the step it takes, if any


class Act(NamedTuple):
    """A word over LETTERS; beside each letter its numbers, and its draw or None."""

    word: str
    numbers: tuple[Numbers, ...]
    draws: tuple[int | None, ...]


class Cue(NamedTuple):
    """Everything an act is made from, but for the thermostat's variable.

    ``first`` is the number of the first letter's draw; ``owed``, the time step of what the last step left.
    """

    ops: tuple[Op, ...]
    first: int
    h: Scalar
    owed: Scalar
    physics: Physics

    @property
    def plain(self) -> bool:
        """Whether all numbers are known to the host, so that equal cues make equal acts."""
        return not any(isinstance(x, Tensor) for x in (self.h, self.owed, *self.physics))


def prepare(cue: Cue, thermostat: Tensor | None, geodesic: bool) -> Act:
    """``geodesic``: drifts are exact, so that they add up."""
    letters: list[Ready] = []
    for number, op in enumerate(cue.ops):
        numbers = LETTERS[op.letter].numbers(time_of(op, cue.h, cue.owed), cue.physics, thermostat)
        letters.append((op.letter, numbers, cue.first + number if is_noisy(op.letter, cue.physics) else None))
    if geodesic:
        letters = joined(letters)
    return Act("".join(one[0] for one in letters), tuple(one[1] for one in letters), tuple(one[2] for one in letters))


def joined(letters: Sequence[Ready]) -> list[Ready]:
    """The same flow with fewer drifts, where drifts are geodesics and nothing between them shakes the momenta.

    Damping only slows the motion down along its geodesic: A(s) O A(t) = A(s + c·t) O with p ← c·p, and A(s) A(t) =
    A(s + t). Without noise, BAOAB drifts once.
    """
    kept: list[Ready] = []
    for letter, values, draw in letters:
        before = "".join(one[0] for one in kept[-2:])
        if letter == "A" and before.endswith("A"):
            kept[-1] = ("A", (kept[-1][1][0] + values[0],), None)
        elif letter == "A" and before == "AO" and kept[-1][2] is None:
            kept[-2] = ("A", (kept[-2][1][0] + kept[-1][1][0] * values[0],), None)
        else:
            kept.append((letter, values, draw))
    return kept


def time_of(op: Op, h: Scalar, owed: Scalar) -> Scalar:
    """How long a letter acts: what the last step left of it, and its share of this one."""
    if not op.tail:
        return op.head * h
    return op.tail * owed + op.head * h if op.head else op.tail * owed
