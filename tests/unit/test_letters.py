"""Without a constraint: every word is its textbook form, at stepsizes that change at every step."""

from itertools import product

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom._step.accuracy import loses_its_kick
from holonom.errors import SchemeError
from holonom.scheme import compile_word
from tests import oracle

from .harness import (
    PHYSICS,
    STEPSIZES,
    WORDS,
    agree,
    array,
    close,
    each,
    parameter,
    parameters,
    repeat,
    slope,
    textbook,
    thermostat,
)

SHAPES = ((3,), (2, 2), ())


def legal(word):
    try:
        return compile_word(word).word == word
    except SchemeError:
        return False


SHORT_WORDS = [w for n in (2, 3, 4) for w in map("".join, product("ABCDEFO", repeat=n)) if legal(w)]


def flat_letters(normals, physics, gradient=slope):
    """The oracle's letters on three tensors handled as one flat vector."""

    def draws():
        while True:
            yield flatten(normals.oracle(s, index=i) for i, s in enumerate(SHAPES))

    noise = draws()

    def one(letter):
        numbers = {k: v for k, v in physics.items() if k in PHYSICS}
        return lambda s, t: oracle.run_word(letter, *s[:2], gradient, t, noise=noise, thermostat=s[2], **numbers)

    return {letter: one(letter) for letter in "ABCDEFO"}


def flatten(arrays):
    return np.concatenate([np.ravel(a) for a in arrays])


def cut(flat):
    ends = np.cumsum([int(np.prod(s)) for s in SHAPES])
    return [x.reshape(s) for x, s in zip(np.split(flat, ends[:-1]), SHAPES, strict=True)]


def jointly(gradient):
    return lambda *positions: cut(gradient(flatten(positions)))


def start(rng, word, **options):
    """An optimizer on three tensors with momenta already moving, its reader, and the oracle's first state."""
    q, p = rng.standard_normal((2, 8))
    optimizer = Langevin([parameter(x) for x in cut(q)], lr=1.0, scheme=word, **{**PHYSICS, **options})
    for param, momentum in zip(parameters(optimizer), cut(p), strict=True):
        optimizer.state[param]["momentum"].copy_(torch.from_numpy(np.array(momentum)))

    def read():
        params = parameters(optimizer)
        momenta = flatten(array(optimizer.state[x]["momentum"]) for x in params)
        return flatten(map(array, params)), momenta, thermostat(optimizer)

    return optimizer, read, (q, p, 0.0)


@pytest.mark.parametrize("synchronize", [False, True])
@pytest.mark.parametrize("word", SHORT_WORDS)
def test_every_word_of_up_to_four_letters(normals, rng, word, synchronize):
    optimizer, read, state = start(rng, word)
    steps = textbook(word, flat_letters(normals, PHYSICS), state)
    agree(optimizer, jointly(slope), steps, read, synchronize)


@pytest.mark.parametrize("synchronize", [False, True])
@pytest.mark.parametrize(
    ("word", "friction"),
    [(word, x) for word in WORDS for x in (0.0, 0.7, float("inf")) if x < float("inf") or not loses_its_kick(word)],
)
def test_words_at_every_friction(normals, rng, word, friction, synchronize):
    physics = dict(PHYSICS, friction=friction)
    optimizer, read, state = start(rng, word, **physics)
    agree(optimizer, jointly(slope), textbook(word, flat_letters(normals, physics), state), read, synchronize)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.4])
@pytest.mark.parametrize("word", ["BAOAB", "OBA", "ABO"])
def test_weight_decay_is_a_penalty_and_maximize_turns_the_loss_alone(normals, rng, word, weight_decay, maximize):
    optimizer, read, state = start(rng, word, weight_decay=weight_decay, maximize=maximize)

    def penalised(q):
        return (-1 if maximize else 1) * slope(q) + weight_decay * q

    agree(optimizer, jointly(slope), textbook(word, flat_letters(normals, PHYSICS, penalised), state), read)


FORMULAS = {
    "OBA": oracle.oba,
    "ABO": oracle.abo,
    "BAOAB": oracle.baoab,
}


@pytest.mark.parametrize("word", FORMULAS)
def test_langevin_words_are_the_explicit_formulas(normals, rng, word):
    q, p = rng.standard_normal((2, 5))
    optimizer = Langevin([parameter(q)], lr=1.0, scheme=word, friction=0.7, temperature=0.3)
    momentum = optimizer.state[parameters(optimizer)[0]]["momentum"]
    momentum.copy_(torch.from_numpy(p))
    if word == "ABO":  # it starts at its force
        h = STEPSIZES[0]
        p = oracle.ornstein_uhlenbeck(oracle.kick(q, p, slope, h), h, 0.7, 0.3, normals.oracle((5,)))
    steps = repeat(lambda s, h: FORMULAS[word](*s, slope, h, 0.7, 0.3, normals.oracle((5,))), (q, p))
    agree(optimizer, each(slope), steps, lambda: (array(parameters(optimizer)[0]), array(momentum)))


def test_adaptive_langevin_is_its_explicit_formula(normals, rng):
    q = rng.standard_normal(5)
    optimizer = Langevin([parameter(q)], lr=1.0, scheme="BACDEDCAB", **PHYSICS)
    p = parameters(optimizer)[0]

    def step(s, h):
        noise = normals.oracle((5,)), normals.oracle((5,))
        return oracle.adaptive_langevin(*s, slope, h, 0.3, 0.2, 0.5, noise)

    def read():
        return array(p), array(optimizer.state[p]["momentum"]), thermostat(optimizer)

    agree(optimizer, each(slope), repeat(step, (q, 0 * q, 0.0)), read, synchronize=True)


@pytest.mark.parametrize("temperature", [0.0, 0.3])
@pytest.mark.parametrize("word", ["L", "M"])
def test_overdamped_steps(normals, rng, word, temperature):
    q = rng.standard_normal(5)
    optimizer = Langevin([parameter(q)], lr=1.0, scheme=word, temperature=temperature)

    def step(state, h):
        q, last = state
        noise = normals.oracle((5,))
        if word == "L":
            return oracle.sgld(q, slope, h, temperature, noise), noise
        return oracle.baoab_limit(q, slope, h, temperature, noise, last), noise

    steps = ((x,) for x, _ in repeat(step, (q, np.zeros(5))))
    agree(optimizer, each(slope), steps, lambda: (array(parameters(optimizer)[0]),))


def test_averaged_noise_is_baoab_at_infinite_friction(normals, rng):
    """(2.56) with stepsize h²/2, when the step before BAOAB's first had drawn nothing."""
    q, h = rng.standard_normal(5), 0.3
    p = parameter(q)
    limit = Langevin([p], lr=1.0, scheme="M", temperature=0.3)

    def step(state, h):
        return oracle.baoab(*state, slope, h, np.inf, 0.3, normals.oracle((5,)))

    states = repeat(step, (q, -h / 2 * slope(q)), (h,) * 6)
    agree(limit, each(slope), ((x,) for x, _ in states), lambda: (array(p),), stepsizes=(h**2 / 2,) * 6)


def test_the_closing_half_kick_lasts_for_the_old_stepsize():
    p = parameter([1.0])
    optimizer = Langevin([p], lr=0.2, scheme="BAOAB", friction=0.0)
    p.grad = torch.ones(1, dtype=torch.float64)
    optimizer.step()
    close(array(optimizer.state[p]["momentum"]), -0.1)
    optimizer.param_groups[0]["lr"] = 0.6
    optimizer.step()
    close(array(optimizer.state[p]["momentum"]), -0.1 - (0.2 + 0.6) / 2, 1e-15)
    optimizer.synchronize()
    close(array(optimizer.state[p]["momentum"]), -0.8, 1e-15)
    optimizer.synchronize()  # paid is paid
    close(array(optimizer.state[p]["momentum"]), -0.8, 1e-15)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_cold_oba_is_sgd(rng, momentum):
    q = rng.standard_normal(5)
    ours, theirs = parameter(q), parameter(q)
    optimizers = Langevin.like_sgd([ours], 0.04, momentum), torch.optim.SGD([theirs], 0.04, momentum)
    v = np.zeros(5)
    for _ in range(20):
        for optimizer, p in zip(optimizers, (ours, theirs), strict=True):
            p.grad = torch.from_numpy(slope(array(p)))
            optimizer.step()
        q, v = oracle.sgd_momentum(q, v, slope, 0.04, momentum)
        close(array(ours), q)
        close(array(theirs), q)
