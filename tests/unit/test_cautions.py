"""A temperature that the settings do not reach is said at construction, once, at the user's line."""

import math
import pickle
import warnings

import pytest
import torch
from torch import nn

from holonom import Langevin, presets
from holonom._step.accuracy import position_temperature
from holonom.constraints import Circle
from holonom.multirate import MultirateLangevin

INF = math.inf


def parameter():
    return nn.Parameter(torch.ones(3, 2))


def step(opt):
    for group in opt.param_groups:
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    opt.step()


def silent(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return make()


@pytest.mark.parametrize("x", [0.0, 1e-9, 0.3, 5.0])
def test_closed_forms(x):
    forms = {
        "ABO": (1 + math.exp(x)) / 2,
        "OBA": (1 + math.exp(-x)) / 2,
        "BAOAB": 1.0,
        "OBABO": 1.0,
        "L": 1.0,
        "M": 1.0,
    }
    for word, ratio in forms.items():
        assert position_temperature(word, math.exp(-x)) == pytest.approx(ratio, rel=1e-14)
    for word in ("BACDEDCAB", "BAFEFAB", "BAB"):
        assert math.isnan(position_temperature(word, math.exp(-x)))
    assert position_temperature("ABO", 0.0) == INF
    each = position_temperature("ABO", torch.tensor([0.5, 0.0, 1.0]))
    torch.testing.assert_close(each, torch.tensor([1.5, INF, 1.0]))


@pytest.mark.parametrize(("word", "factor"), [("ABO", "1.11"), ("OBA", "0.909")])
def test_positions_off_the_temperature_are_said_with_the_factor(word, factor):
    with pytest.warns(UserWarning, match=f"group 0: scheme '{word}' .* {factor} × .* Write scheme='BAOAB'") as caught:
        opt = Langevin([parameter()], 0.1, scheme=word, friction=2.0, temperature=0.01)
    assert [w.filename for w in caught] == [__file__]
    silent(lambda: step(opt))
    silent(lambda: opt.load_state_dict(opt.state_dict()))
    silent(lambda: step(opt))
    silent(lambda: step(pickle.loads(pickle.dumps(opt))))


@pytest.mark.parametrize(
    "options",
    [{"scheme": "BAOAB", "friction": 50.0}, {"scheme": "ABO", "friction": 0.3}, {"scheme": "OBA", "friction": 0.3},
     {"scheme": "ABO", "friction": 50.0, "temperature": 0.0}, {"scheme": "L"}, {"scheme": "M"},
     {"scheme": "BACDEDCAB"}, {"friction": INF}, {"scheme": "OBA", "friction": INF, "temperature": 0.0},
     {"scheme": "BAOAB", "friction": 0.0, "temperature": 0.0}, {"scheme": "BAB", "temperature": 0.0}],
)  # fmt: skip
def test_what_is_right_is_not_warned_about(options):
    silent(lambda: step(Langevin([parameter()], 0.1, **{"temperature": 0.01, **options})))


def test_sgds_terms_need_no_warning():
    for momentum in (0.0, 0.5, 0.9):
        silent(lambda m=momentum: step(Langevin.like_sgd([parameter()], 0.1, m, temperature=0.01)))


def test_what_a_schedule_makes_wrong_is_said_then():
    opt = silent(lambda: Langevin([parameter()], 0.1, scheme="ABO", friction=0.1, temperature=0.01))
    silent(lambda: step(opt))
    opt.param_groups[0]["lr"] = 1.0
    with pytest.warns(UserWarning, match=r"at friction·lr = 0\.1 samples positions at 1\.05 ×") as caught:
        step(opt)
    assert [w.filename for w in caught] == [__file__]
    opt.param_groups[0]["lr"] = 2.0
    silent(lambda: step(opt))


def test_of_replicas_the_worst_counts():
    friction, temperature = torch.tensor([0.1, 4.0, 20.0]), torch.tensor([0.1, 0.1, 0.0])
    with pytest.warns(UserWarning, match=r"at friction·lr = 0\.4 samples positions at 1\.25 ×"):
        Langevin([parameter()], 0.1, scheme="ABO", friction=friction, temperature=temperature)


def test_groups_are_named_and_later_ones_looked_at():
    hot = {"scheme": "OBA", "friction": 5.0}
    with pytest.warns(UserWarning, match="group 1, 2: scheme 'OBA'"):
        Langevin(
            [{"params": [parameter()]}, *({"params": [parameter()], **hot} for _ in range(2))], 0.1, temperature=0.1
        )
    opt = Langevin([parameter()], 0.1, temperature=0.1)
    with pytest.warns(UserWarning, match="group 1: scheme 'OBA'") as caught:
        opt.add_param_group({"params": [parameter()], **hot})
    assert [w.filename for w in caught] == [__file__]


def test_a_slow_groups_step_counts():
    groups = [{"params": [parameter()], "friction": 0.01}, {"params": [parameter()], "every": 5}]
    with pytest.warns(UserWarning, match=r"group 1: .* at friction·lr = 0\.5 samples positions at 1\.32 ×") as caught:
        MultirateLangevin(groups, 0.1, scheme="ABO", temperature=0.1)
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize(
    ("options", "why", "instead"),
    [
        ({"friction": 0.0}, "because friction=0", "a positive friction"),
        ({"friction": torch.tensor([1.0, 0.0, 1.0])}, "because friction=0", "a positive friction"),
        ({"scheme": "BAB"}, "scheme 'BAB' has no letter that draws it", "scheme='BAOAB' with a friction"),
        (
            {"scheme": "BACDEDCAB", "driving_noise": 0.0},
            "driving_noise=0 .*thermostat's target",
            "a positive driving_noise",
        ),
        ({"scheme": "BAFEFAB", "driving_noise": 0.0}, "driving_noise=0", "a positive driving_noise"),
    ],
)
def test_a_temperature_that_draws_no_noise_is_said(options, why, instead):
    text = f"group 0: a temperature above 0 draws no noise, .*{why}.* To sample, write {instead}; .* temperature=0"
    with pytest.warns(UserWarning, match=text) as caught:
        opt = Langevin([parameter()], 0.1, temperature=0.01, **options)
    assert [w.filename for w in caught] == [__file__]
    silent(lambda: step(opt))


def test_a_temperature_set_later_is_looked_at():
    opt = silent(lambda: Langevin([parameter()], 0.1, friction=0.0))
    opt.param_groups[0]["temperature"] = 0.1
    with pytest.warns(UserWarning, match="draws no noise"):
        step(opt)


@pytest.mark.parametrize("word", ["ABO", "BOA", "OBOA"])
@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_infinite_friction_that_takes_the_kick_is_refused(word, temperature):
    message = f"scheme '{word}' with friction=inf draws the momentum anew .* write scheme='BAOAB'"
    with pytest.raises(ValueError, match=message):
        Langevin([parameter()], 0.1, scheme=word, friction=INF, temperature=temperature)
    with pytest.raises(ValueError, match=message):
        Langevin([parameter()], 0.1, scheme=word, friction=torch.tensor([1.0, INF, 1.0]))
    with pytest.raises(ValueError, match=f"scheme '{word}' with momentum=0 draws"):
        Langevin.like_sgd([parameter()], 0.1, 0.0, scheme=word)
    opt = Langevin([parameter()], 0.1, scheme=word)
    opt.param_groups[0]["friction"] = INF
    with pytest.raises(ValueError, match=message):
        step(opt)


@pytest.mark.parametrize("name", ["c_cola_ud", "s_cola_ud", "o_cola_ud"])
@pytest.mark.parametrize("temperature", [0.0, 1e-4])
def test_underdamped_presets_are_right_by_default(name, temperature):
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "weights that did not satisfy")
        opt = getattr(presets, name)(net, friction=3.0, temperature=temperature)
        words = {group["scheme"] for group in opt.param_groups}
    assert words == {"BAOAB"}
    with pytest.warns(UserWarning, match="scheme 'ABO' .* samples positions") as caught:
        getattr(presets, name)(net, friction=3.0, temperature=1e-4, scheme="ABO")
    assert {w.filename for w in caught if "samples" in str(w.message)} == {__file__}


@pytest.mark.parametrize("name", ["dhsgd", "dhsgdc", "lol", "adlala"])
def test_presets_that_mean_no_noise_do_not_warn(name):
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    silent(lambda: getattr(presets, name)(net))
    if name == "dhsgdc":
        silent(lambda: presets.dhsgdc(net, temperature=0.1))  # of the output layer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_that_rounds_steps_away_is_said(dtype):
    p = nn.Parameter(torch.ones(3, 2, dtype=dtype))
    with pytest.warns(
        UserWarning, match=r"group 0: b?float16 weights are rounded to themselves by changes below 0\.00"
    ):
        opt = Langevin([p], 0.1)
    p.grad = torch.full_like(p, 1e-3)  # a first step of 0.1²·½·10⁻³
    opt.step()
    assert torch.equal(p.detach(), torch.ones_like(p))
    silent(lambda: Langevin([nn.Parameter(torch.full((3, 2), 0.5, dtype=dtype))], 0.1, constraint=Circle(1.0)))
