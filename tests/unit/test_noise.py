"""Noise: a draw depends on its key (seed, step, draw, parameter, part) and on nothing else."""

import os
import signal

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom._random import mix
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from tests.injected import inject, normal

from .harness import array, parameter

SHAPE, CPU = torch.Size([1000]), torch.device("cpu")


def draw(*key, shape=SHAPE, dtype=torch.float64):
    return normal(shape, dtype, CPU, *key)


KEY = (3, 14, 1, 5, 0)
SEED, STEP = range(2)
CHANGES = [(position, 1) for position in range(5)] + [(position, -1) for position in range(4)]
CHANGES += [(SEED, 2**32), (SEED, -(2**40)), (STEP, 2**31)]


@pytest.mark.parametrize(("position", "change"), CHANGES)
def test_another_key_draws_independently(position, change):
    other = list(KEY)
    other[position] += change
    correlation = np.corrcoef(draw(*KEY), draw(*other))[0, 1]
    assert abs(correlation) < 5 / np.sqrt(1000)  # five standard deviations


def test_swapped_keys_are_different_keys():
    assert mix(1, 2) != mix(2, 1)
    assert mix(0, 0) != mix(0)
    many = {mix(a, b, c) for a in range(20) for b in range(-20, 20) for c in range(20)}
    assert len(many) == 20 * 40 * 20


def energy(params):
    return sum((p**2).sum() for p in params)


def disc(q):
    return (q**2).sum() - 9


SPACES = {
    "free": None,
    "circle": Circle(2.0),
    "sphere": Sphere(3.0),
    "orthogonal": Orthogonal(),
    "level set": LevelSet(disc, slack=True),
}


def run(space, word, steps=3, temperature=0.01, seed=0, synchronize=False):
    params = [parameter(np.eye(2)), parameter(np.eye(2)[::-1].copy()), parameter(np.eye(3))]
    groups = [{"params": params[:2]}, {"params": params[2:], "seed": seed + 100}]
    physics = {"temperature": temperature, "driving_noise": temperature, "coupling": 0.1}
    optimizer = Langevin(groups, lr=0.01, scheme=word, **physics, constraint=space, seed=seed)
    for _ in range(steps):
        for synchronizing in (False, True)[: 1 + synchronize]:
            optimizer.zero_grad()
            energy(params).backward()
            optimizer.synchronize() if synchronizing else optimizer.step()
    return [array(p) for p in params]


@pytest.fixture
def keys(monkeypatch):
    """Every key the library draws with, in order."""
    seen = []

    def record(shape, dtype, device, *key):
        seen.append(key)
        return normal(shape, dtype, device, *key)

    inject(monkeypatch, record)
    return seen


@pytest.mark.parametrize("synchronize", [False, True])
@pytest.mark.parametrize(
    ("word", "space"),
    [(word, "sphere") for word in ("BAOAB", "OBABO", "ABO", "BACDEDCAB", "BAFEFAB", "L")]
    + [(word, space) for word in ("OBABO", "L") for space in SPACES if space != "sphere"],
)
def test_no_key_is_used_twice(keys, space, word, synchronize):
    run(SPACES[space], word, synchronize=synchronize)
    assert len(keys) == len(set(keys)) > 0
    assert {key[3] for key in keys} == {0, 1, 2}  # parameters are counted through all groups
    assert {key[0] for key in keys} == {0, 100}


# letters that draw: a draw counts the letters before it, E excepted; those of synchronize() count from below zero
DRAWS = {"BAOAB": {2}, "OBA": {0}, "ABO": {1}, "BACDEDCAB": {3, 4}, "BAFEFAB": {2, 3}, "L": {0}, "M": {0}}


@pytest.mark.parametrize("word", DRAWS)
def test_draws_are_numbered_by_the_letter(keys, word):
    run(None, word)
    assert {key[2] for key in keys} == DRAWS[word]
    assert {key[1] for key in keys} == {0, 1, 2}


@pytest.mark.parametrize(
    ("space", "word", "parts"),
    [
        ("free", "BAOAB", {0}),
        ("circle", "BAOAB", {0}),  # along the circle
        ("circle", "L", {0, 1}),  # θ and ξ
        ("sphere", "BAOAB", {0, 1}),
        ("sphere", "L", {0, 1}),
        ("orthogonal", "BAOAB", {0}),
        ("level set", "BAOAB", {0, 1}),
        ("level set", "L", {0, 1}),
    ],
)
def test_slack_has_its_own_part(keys, space, word, parts):
    run(SPACES[space], word)
    assert {key[4] for key in keys} == parts


@pytest.mark.parametrize("word", ["BAOAB", "BACDEDCAB", "L", "M"])
def test_a_cold_run_draws_nothing(keys, word):
    run(None, word, temperature=0.0)
    assert keys == []


def test_global_generators_are_neither_read_nor_moved():
    torch.manual_seed(1)
    first = run(SPACES["sphere"], "BAOAB")
    torch.manual_seed(2)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1]
    second = run(SPACES["sphere"], "BAOAB")
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()
    for x, y in zip(first, second, strict=True):
        np.testing.assert_array_equal(x, y)


def test_seeds_differ():
    assert (run(None, "BAOAB", seed=0)[0] != run(None, "BAOAB", seed=1)[0]).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_process_draws_as_its_parent_does():
    wanted = draw(*KEY, shape=torch.Size([100_000]))
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits for threads it does not have
        same = torch.equal(draw(*KEY, shape=wanted.shape), wanted)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
