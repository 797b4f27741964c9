"""A word's program cut into the parts that a slow group runs, one a step, between two gradients. No torch."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from ..scheme import Op

Program = tuple[Op, ...]


@cache
def spread(program: Program, parts: int) -> tuple[Program, ...]:
    """Cut a program of one slow step at equal shares of its drift.

    Every part drifts for 1/parts of the step; all other letters act where they stand in the word, for
    as long as they did:

        BAOAB in 5    B(H)A(H/5) | A(H/5) | A(H/10)O(H)A(H/10) | A(H/5) | A(H/5)
        OBA in 3      O(H)B(H)A(H/3) | A(H/3) | A(H/3)

    With μ = e^{−γH} the second is Algorithm 5.1. A letter at a cut ends the part before it.
    """
    cuts: list[list[Op]] = [[]]
    room = Fraction(1, parts)
    for op in program:
        if op.letter != "A":
            cuts[-1].append(op)
            continue
        left = Fraction(op.head).limit_denominator(1000)
        while left:
            if not room:
                cuts.append([])
                room = Fraction(1, parts)
            share = min(left, room)
            cuts[-1].append(Op("A", head=float(share)))
            left -= share
            room -= share
    return tuple(map(tuple, cuts))
