"""Drifts along one geodesic add up: without noise between them they are one."""

import pytest
import torch

from holonom import Langevin
from holonom._step.letters import Ready, joined
from holonom.constraints import Circle, Free, Orthogonal, Sphere

SPACES = {
    "free": Free(),
    "circle": Circle(0.7),
    "circles": Circle(torch.full((4, 1), 0.7, dtype=torch.float64)),
    "sphere": Sphere(2.0),
    "unit rows": Sphere(1.0, slack=False),
}


def trained(space, word, monkeypatch, geodesic, **options):
    calls = []
    drift = type(space).drift_
    monkeypatch.setattr(space, "traits", space.traits._replace(geodesic=geodesic))
    monkeypatch.setattr(type(space), "drift_", lambda *args: (calls.append(0), drift(*args))[1])
    q = torch.nn.Parameter(torch.linspace(-0.6, 0.5, 24, dtype=torch.float64).reshape(4, 6).sin())
    opt = Langevin([q], 0.3, scheme=word, constraint=space, **{"friction": 0.8, **options})
    for _ in range(12):
        q.grad = (3 * q.detach()).cos()
        opt.step()
    return q.detach(), [x for x in opt.state[q].values() if isinstance(x, torch.Tensor)], len(calls)


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("word", ["BAOAB", "BAAOAAB", "ABO"])
@pytest.mark.parametrize("space", SPACES)
def test_one_drift_is_the_same_motion(space, word, monkeypatch):
    one, state, calls = trained(SPACES[space], word, monkeypatch, True)
    with monkeypatch.context() as apart:
        several, others, more = trained(SPACES[space], word, apart, False)
    assert calls == 12
    assert more == 12 * word.count("A")
    torch.testing.assert_close(one, several, rtol=1e-12, atol=1e-13)
    for ours, theirs in zip(state, others, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_noise_parts_them(monkeypatch):
    assert trained(Sphere(2.0), "BAOAB", monkeypatch, True, temperature=0.1)[2] == 24


def test_iterated_drifts_do_not_add_up():
    assert not Orthogonal().traits.geodesic


def test_a_word_is_joined_where_it_may_be():
    numbers = [(1.0,), (2.0,), (3.0,), (0.5, 0.0), (4.0,), (6.0,), (0.1, 1.0), (7.0,)]
    draws = [None, None, None, None, None, None, 6, None]
    word, values, kept = zip(*joined([Ready(*op) for op in zip("BAAOAAOA", numbers, draws, strict=True)]), strict=True)
    assert "".join(word) == "BAOOA"
    assert values == ((1.0,), (2.0 + 3.0 + 0.5 * 4.0 + 0.5 * 6.0,), (0.5, 0.0), (0.1, 1.0), (7.0,))
    assert kept == (None, None, None, 6, None)
