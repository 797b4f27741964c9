"""A sampler test without sampling: the stationary law of every word on U = ½kq², exact to rounding.

The continuous dynamics has var q = τ/k and var p = τ. Of a discretised one the covariance is what
:mod:`tests.law.linear_map` solves for. Known answers: BAOAB and its limit M have the exact var q at every
stable step size (Leimkuhler & Matthews 2013); L has 1/(1 − hk/2) times it, OBABO (velocity Verlet between
two half baths) 1/(1 − h²k/4) times it with exact momenta, BAOAB's momenta have (1 − h²k/4) times theirs.
"""

import math

import pytest

from holonom._step.accuracy import position_temperature
from tests.law.linear_map import covariance

INF = math.inf


# Stability needs h√k < 2; the friction may be anything, and infinite friction draws new momenta every step.
@pytest.mark.parametrize("temperature", [1.0, 0.03])
@pytest.mark.parametrize("friction", [0.01, 1.0, 20.0, INF])
@pytest.mark.parametrize(("h", "k"), [(0.6, 1.0), (0.01, 1.0), (1.9, 1.0), (0.3, 30.0), (5.0, 0.1)])
def test_baoab_has_the_exact_position_variance(monkeypatch, h, k, friction, temperature):
    s = covariance(monkeypatch, "BAOAB", h, k, friction, temperature)
    assert s[0, 0] * k / temperature == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(
    ("word", "ratio"),
    [("BAOAB", 1.0), ("OBA", 0.8762), ("ABO", 1.5072), ("OBABO", 1.0989), ("L", 1 / 0.7), ("M", 1.0)],
)
def test_position_variance_of_every_word(monkeypatch, word, ratio):
    digits = 1e-12 if word in ("BAOAB", "L", "M") else 5e-5
    seen = covariance(monkeypatch, word, 0.6)[0, 0]
    textbook = covariance(monkeypatch, word, 0.6, synchronize=True)[0, 0]
    assert seen == pytest.approx(ratio, abs=digits)
    # Moving the last letters to the front changes momenta at most, never the positions one sees.
    assert textbook == pytest.approx(seen, rel=1e-12)


@pytest.mark.parametrize(("h", "k"), [(0.6, 1.0), (0.05, 20.0), (1.2, 0.5), (0.01, 3.0)])
class TestKnownBias:
    def test_overdamped(self, monkeypatch, h, k):
        assert covariance(monkeypatch, "L", h, k)[0, 0] * k == pytest.approx(1 / (1 - h * k / 2), rel=1e-12)

    def test_averaged_noise_has_none(self, monkeypatch, h, k):
        assert covariance(monkeypatch, "M", h, k)[0, 0] * k == pytest.approx(1, rel=1e-12)

    def test_baoab_momenta(self, monkeypatch, h, k):
        s = covariance(monkeypatch, "BAOAB", h, k, synchronize=True)
        assert s[1, 1] == pytest.approx(1 - h * h * k / 4, rel=1e-11)
        assert s[0, 1] == pytest.approx(0, abs=1e-12)

    def test_obabo(self, monkeypatch, h, k):
        s = covariance(monkeypatch, "OBABO", h, k, synchronize=True)
        assert s[0, 0] * k == pytest.approx(1 / (1 - h * h * k / 4), rel=1e-11)
        assert s[1, 1] == pytest.approx(1, rel=1e-11)

    def test_baoab_with_infinite_friction_is_the_averaged_overdamped_step(self, monkeypatch, h, k):
        """With h²/2 for h, and not in the variance alone: positions remember the last draw equally well."""
        s = covariance(monkeypatch, "BAOAB", h, k, friction=INF)
        t = covariance(monkeypatch, "M", h * h / 2, k)
        assert s[0, 0] == pytest.approx(t[0, 0], rel=1e-12)
        # Behind the last drift p is R itself, and so is what M keeps.
        assert s[0, 1] == pytest.approx(t[0, 1], rel=1e-11)


@pytest.mark.parametrize(("word", "order"), [("OBA", 1), ("ABO", 1), ("L", 1), ("OBABO", 2), ("BOAOB", 2)])
def test_order_of_the_stationary_bias(monkeypatch, word, order):
    """Halving h divides |var q·k/τ − 1| by 2^order."""
    biases = [abs(covariance(monkeypatch, word, h, k=1.3)[0, 0] * 1.3 - 1) for h in (0.02, 0.01)]
    assert math.log2(biases[0] / biases[1]) == pytest.approx(order, abs=0.05)


@pytest.mark.parametrize("damping", [0.02, 0.5, 3.0])
@pytest.mark.parametrize("word", ["OBA", "ABO", "BAOAB", "OBABO", "BOAOB", "BAAOAAB", "OOBA", "BAO", "BOA", "L", "M"])
def test_where_the_loss_is_nearly_flat_positions_have_the_predicted_temperature(monkeypatch, word, damping):
    h, k = 0.1, 1e-6
    seen = covariance(monkeypatch, word, h, k, friction=damping / h, temperature=0.3)[0, 0] * k / 0.3
    assert seen == pytest.approx(position_temperature(word, math.exp(-damping)), rel=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("word", ["OBA", "OBABO"])
def test_in_sgds_terms_positions_are_at_the_temperature_up_to_the_rate(monkeypatch, word, momentum):
    """O(lr) = O(h²), whatever the momentum: halving lr halves the error."""
    k, tau = 1.3, 0.2
    variances = [covariance(monkeypatch, word, lr, k, temperature=tau, momentum=momentum) for lr in (2e-4, 1e-4)]
    errors = [s[0, 0] * k / tau - 1 for s in variances]
    assert 0 < errors[0] < 4e-3
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(("word", "momentum"), [("BAOAB", 0.0), ("BAOAB", 0.9), ("ABO", 0.3), ("BAO", 0.3)])
def test_in_sgds_terms_every_word_has_the_noise_of_its_positions(monkeypatch, word, momentum):
    s = covariance(monkeypatch, word, 1e-6, 1.3, temperature=0.2, momentum=momentum)
    assert s[0, 0] * 1.3 / 0.2 == pytest.approx(1, abs=1e-9 if word == "BAOAB" else 1e-5)


def test_without_momentum_sgds_terms_are_sgld(monkeypatch):
    s = covariance(monkeypatch, "OBA", 0.1, 2.0, temperature=0.5, momentum=0.0)[0, 0]
    assert s == pytest.approx(covariance(monkeypatch, "L", 0.1, 2.0, temperature=0.5)[0, 0], rel=1e-12)
