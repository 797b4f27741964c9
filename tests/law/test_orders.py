"""Orders of convergence at τ = 0: halving h divides the error at a fixed time by 2^order.

BAOAB and OBABO are symmetric, hence of second order, with friction and without; OBA and ABO are of first
order. On a manifold the drift is exact (circle, sphere) or RATTLE (second order), so the orders survive.

The limit all are compared with is BAOAB extrapolated: errors of a symmetric method have even powers of h
only, so (4x_{h/2} − x_h)/3 is of fourth order, and an order-one word measured against it must converge to
the same limit. L at τ = 0 is Euler's method for the gradient flow, whose limit is another one: its order is
read from three step sizes, |x_h − x_{h/2}| / |x_{h/2} − x_{h/4}| = 2^order.
"""

import math
from functools import cache

import pytest

from tests.law.mechanics import NAMES, Motion

TIME = 1.0


def position(name, word, friction, steps):
    return Motion(name, TIME / steps, word, friction).step(steps)


@cache
def limit(name, friction):
    coarse, fine = (position(name, "BAOAB", friction, steps) for steps in (20, 40))
    return (4 * fine - coarse) / 3


def order(name, word, friction, steps):
    errors = [float((position(name, word, friction, n) - limit(name, friction)).norm()) for n in (steps, 2 * steps)]
    assert errors[1] > 1e-8  # far from rounding
    return math.log2(errors[0] / errors[1])


@pytest.mark.parametrize(("word", "friction"), [("BAOAB", 0.0), ("BAOAB", 1.0), ("OBABO", 1.0)])
@pytest.mark.parametrize("name", NAMES)
def test_symmetric_words_are_of_second_order(name, word, friction):
    assert order(name, word, friction, 10) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("word", ["OBA", "ABO"])
@pytest.mark.parametrize("name", NAMES)
def test_unsymmetric_words_are_of_first_order(name, word):
    assert order(name, word, 1.0, 20) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_the_overdamped_step_is_of_first_order(name):
    x = [position(name, "L", 0.0, steps) for steps in (15, 30, 60)]
    assert math.log2(float((x[0] - x[1]).norm() / (x[1] - x[2]).norm())) == pytest.approx(1, abs=0.15)
