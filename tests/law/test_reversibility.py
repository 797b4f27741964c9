"""Reversibility at τ = 0, γ = 0: n steps, momenta turned round, n steps, and the start is back.

Drift and kick are reversible maps and BAOAB without friction is the palindrome B A A B, so turning p round
makes the n steps undo themselves exactly. On a manifold that holds for the exact rotations of circle and
sphere, and for RATTLE as long as its equations are solved to rounding and to the same root on the way back.

Between steps a half kick is owed; ``synchronize()`` pays it, so that the momentum turned round is the one
at the end of a textbook step. Rounding grows with the separation of nearby orbits, which is slow in these
systems: 1e-9 leaves four digits for it.
"""

import pytest
import torch

from tests.law.mechanics import NAMES, Motion


@pytest.mark.parametrize("word", ["BAOAB", "OBABO"])
@pytest.mark.parametrize("name", NAMES)
def test_the_way_back_is_the_way(name, word):
    motion = Motion(name, h=0.1, word=word)
    start, momenta = motion.q.detach().clone(), [motion.state[slot].clone() for slot in motion.momenta]
    steps = 20 if "level" in name else 100
    there = motion.step(steps)
    assert (there - start).abs().max() > 0.1
    motion.reverse()
    back = motion.step(steps)
    torch.testing.assert_close(back, start, rtol=0, atol=1e-9)
    motion.reverse()
    for slot, before in zip(motion.momenta, momenta):
        torch.testing.assert_close(motion.state[slot], before, rtol=0, atol=1e-9)


def test_friction_is_not_reversible():
    """The check sees what it should: a little friction, and the start is missed."""
    motion = Motion("free", h=0.1, friction=1e-3)
    start = motion.q.detach().clone()
    motion.step(200)
    motion.reverse()
    assert (motion.step(200) - start).abs().max() > 1e-3
