"""The thermostat's numbers: what is derived from time, friction and temperature, what is given, and what is said."""

import math
import warnings

import pytest
import torch
from torch import nn

from holonom import Langevin, TemperatureSchedule, ThermostatError, annealing, presets
from holonom._step.thermostat import BOUND
from holonom.multirate import MultirateLangevin

H, TAU = 0.1, 0.3


def build(entries=6, word="BACDEDCAB", lr=H, temperature=TAU, **options):
    q = nn.Parameter(torch.linspace(-1, 1, entries, dtype=torch.float64))
    return q, Langevin([q], lr, scheme=word, temperature=temperature, seed=1, **options)


def run(q, opt, steps=5, force=1.0):
    for _ in range(steps):
        q.grad = force * q.detach()
        opt.step()
    return q.detach().clone(), opt.state[q]["thermostat"].clone()


@pytest.mark.parametrize("word", ["BACDEDCAB", "BAFEFAB"])
def test_derived_numbers_are_those_of_the_formulas(word):
    time, friction = 1.7, 0.4
    q, opt = build(word=word, thermostat_time=time, thermostat_friction=friction)
    assert opt.state[q]["thermostat"] == pytest.approx(friction)
    p, given = build(word=word, coupling=1 / (6 * TAU * time**2), driving_noise=math.sqrt(2 * friction * TAU))
    given.state[p]["thermostat"].fill_(friction)
    torch.testing.assert_close(run(q, opt), run(p, given), rtol=1e-12, atol=1e-12)


def test_the_default_is_twenty_steps_of_the_lr_at_construction():
    q, opt = build()
    p, told = build(thermostat_time=20 * H, thermostat_friction=1 / (20 * H))
    torch.testing.assert_close(run(q, opt), run(p, told), rtol=0, atol=0)
    opt.param_groups[0]["lr"] = told.param_groups[0]["lr"] = H / 10
    torch.testing.assert_close(run(q, opt), run(p, told), rtol=0, atol=0)
    assert opt.param_groups[0]["thermostat_time"] == 20 * H


def test_replicas_have_their_own():
    taus, rates = torch.tensor([0.1, 0.5], dtype=torch.float64), torch.tensor([0.1, 0.2], dtype=torch.float64)
    q = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(2, 6))
    opt = Langevin([q], rates, scheme="BACDEDCAB", temperature=taus, seed=torch.tensor([4, 5]))
    found = run(q, opt)
    for number in range(2):
        p = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(2, 6)[number].clone())
        alone = Langevin(
            [p], float(rates[number]), scheme="BACDEDCAB", temperature=float(taus[number]), seed=4 + number
        )
        position, xi = run(p, alone)
        torch.testing.assert_close(found[0][number], position, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[1][number], xi, rtol=1e-12, atol=1e-12)


def test_given_numbers_start_at_zero():
    for options in ({"coupling": 0.1}, {"driving_noise": 0.01}, {"coupling": 0.1, "driving_noise": 0.01}):
        q, opt = build(**options)
        assert opt.state[q]["thermostat"] == 0
    q, opt = build(word="BACECAB")  # no noise, so that ξ has mean 0
    assert opt.state[q]["thermostat"] == 0


def test_a_slow_group_counts_its_own_steps():
    groups = [{"params": [nn.Parameter(torch.zeros(2))], "every": every} for every in (1, 5)]
    opt = MultirateLangevin(groups, H, scheme="BACDEDCAB", temperature=TAU)
    assert [group["thermostat_time"] for group in opt.param_groups] == pytest.approx([20 * H, 100 * H])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.0}, "coupling and driving_noise cannot be derived"),
        ({"temperature": torch.tensor([0.1, 0.0])}, "at temperature 0"),
        ({"temperature": 0.0, "coupling": 0.1}, "driving_noise cannot be derived"),
        ({"temperature": 0.0, "driving_noise": 0.0}, "coupling cannot be derived"),
        ({"lr": 0.0}, "give thermostat_time"),
        ({"thermostat_time": 0.0}, "thermostat_time (t) must be positive"),
        ({"thermostat_time": -1.0}, "thermostat_time (t)"),
        ({"thermostat_friction": math.inf}, "thermostat_friction (γ)"),
        ({"word": "BADOAB"}, "give driving_noise"),
    ],
)
def test_what_cannot_be_derived_is_refused(options, words):
    with pytest.raises(ValueError) as error:
        build(**options)
    assert words in str(error.value)


def test_given_numbers_need_no_temperature():
    q, opt = build(temperature=0.0, lr=H, coupling=0.1, driving_noise=0.0)
    run(q, opt)
    q, opt = build(lr=0.0, coupling=0.1, driving_noise=0.01)
    run(q, opt)


def test_a_schedule_that_reaches_zero_ends_as_damped_descent():
    """The limit of small τ: no noise, and ξ at its bound 1/h."""
    ends = []
    for end in (0.0, 1e-25):
        q, opt = build()
        schedule = TemperatureSchedule(opt, annealing(50, end=end))
        for _ in range(100):
            run(q, opt, 1)
            schedule.step()
        ends.append(run(q, opt, 1))
    assert ends[0][1] == pytest.approx(BOUND / H)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("preset", [presets.adaptive_langevin, presets.adlala])
def test_presets_derive_and_take_the_papers_numbers(preset):
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert "thermostat_time=3, thermostat_friction=0.333" in repr(preset(net, 0.15))
    assert "thermostat_time=7, thermostat_friction=2" in repr(preset(net, thermostat_time=7.0, thermostat_friction=2.0))
    assert "coupling=0.1, driving_noise=0.01" in repr(preset(net, coupling=0.1, driving_noise=0.01))


def test_settings_of_a_checkpoint_stay_as_given():
    q, opt = build(coupling=0.1, driving_noise=0.01)
    run(q, opt)
    saved = opt.state_dict()
    for group in saved["param_groups"]:  # as 0.1.0 wrote them
        del group["thermostat_time"], group["thermostat_friction"]
    p, loaded = build()
    loaded.load_state_dict(saved)
    with torch.no_grad():
        p.copy_(q)
    torch.testing.assert_close(run(p, loaded), run(q, opt), rtol=0, atol=0)
    assert "coupling=0.1, driving_noise=0.01" in repr(loaded)


# ── what is said ─────────────────────────────────────────────────────────────────────────────────


def test_a_runaway_is_warned_about_once_and_check_raises():
    q, opt = build(entries=10_000, temperature=1.0, coupling=0.1, driving_noise=0.01)
    run(q, opt, 15)
    q.grad = q.detach().clone()
    opt.synchronize()
    with pytest.warns(UserWarning, match="group 0: the thermostat has run away") as caught:
        opt.step()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(q, opt, 32)
    with pytest.raises(ThermostatError, match="group 0: the thermostat has run away"):
        opt.check()


def test_a_device_is_asked_by_diagnostics_only(monkeypatch):
    """Steps do not read ξ where that would stall: here they are not looked at."""
    q, opt = build(coupling=0.1, driving_noise=0.01)
    monkeypatch.setattr(opt._watch, "EVERY", 10**9)
    opt.state[q]["thermostat"].fill_(1e4)
    run(q, opt, 40)
    with pytest.warns(UserWarning, match="has run away"):
        opt.residuals()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.state_dict()


def test_noise_that_is_too_strong_is_said():
    q, opt = build(entries=400, temperature=1e-4)
    generator = torch.Generator().manual_seed(0)

    def noisy(steps):
        for _ in range(steps):
            q.grad = torch.randn(q.shape, generator=generator, dtype=torch.float64)
            opt.step()

    noisy(900)
    with pytest.warns(UserWarning, match="lower lr or take larger batches"):
        noisy(200)
    opt.check()


def test_a_time_that_is_too_short_is_said():
    q, opt = build(lr=1e-3)
    opt.param_groups[0]["lr"] = H
    with pytest.warns(UserWarning, match="give thermostat_time=2"):
        run(q, opt, 16)
