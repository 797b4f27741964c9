"""Runs of the playground without its server: settings, changes while a run goes, and the script that repeats it."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
import torch

from holonom import presets
from holonom.playground import diagnostics, frames, recipe
from holonom.playground.engine import Engine
from holonom.playground.hub import Hub
from holonom.playground.methods import METHODS, places, unused
from holonom.playground.presets import DEFAULT, PRESETS
from holonom.playground.run import NUMBERS, Run
from holonom.playground.script import fragment, script, table
from holonom.playground.series import MOST, Series
from holonom.playground.settings import ARM_CONTROLS, SettingError, Settings, read_settings

SMALL = {"points": 40, "depth": 2, "width": 6, "batch": 8, "scale": 1.0, "seed": 3}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the engine's thread and in scripts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def begin(*arms: dict[str, Any], **settings: Any) -> Run:
    return Run(read_settings({**SMALL, "arms": list(arms), **settings}, Settings()))


def advance(run: Run, steps: int) -> None:
    for _ in range(steps):
        run.advance()


def change(run: Run, **settings: Any) -> bool:
    return run.change(read_settings(settings, run.settings))


def numbers(run: Run, arm: int) -> dict[str, float]:
    return {name: float(value.mean()) for name, value in run.numbers(run.arms[arm]).items()}


# ── settings ─────────────────────────────────────────────────────────────────────────────────────


def test_six_presets_of_two_sentences() -> None:
    assert len(PRESETS) == 6
    assert DEFAULT in PRESETS
    for preset in PRESETS.values():
        assert len(re.findall(r"[.!](?= [A-Z]|$)", preset.text)) == 2, preset.text
        assert len(preset.settings.arms) == 2
        assert read_settings(json.loads(json.dumps(preset.settings.to_json()))) == preset.settings


@pytest.mark.parametrize(
    ("given", "name", "message"),
    [
        ({"width": 0}, "width", "a whole number from 1 to 500"),
        ({"depth": 2.5}, "depth", "a whole number"),
        ({"noise": float("nan")}, "noise", "must be a number"),
        ({"turns": True}, "turns", "must be a number"),
        ({"seed": 10**400}, "seed", "must be a number, got 1000"),
        ({"arms": [{"method": ["sgd"]}]}, "arms.0.method", "no method"),
        ({"data": "moons"}, "data", "one of spirals, waves, circles, xor, painted"),
        ({"colour": 1}, "colour", "no setting 'colour'"),
        ({"depth": 10, "width": 500}, "width", "are too many for the page.*fewer hidden layers, a smaller width"),
        ({"replicas": 16, "depth": 3, "width": 128}, "width", "in 16 replicas"),
        ({"arms": []}, "arms", "one or two"),
        ({"arms": [{"method": "newton"}]}, "arms.0.method", "no method 'newton'"),
        ({"arms": [{"method": "sgd", "radius": 1.0}]}, "arms.0.radius", "SGD has no setting 'radius'"),
        ({"arms": [{"method": "sgd"}, {"method": "sgld", "lr": 9.0}]}, "arms.1.lr", "from 0.0001 to 2"),
        ({"arms": [{"method": "sgld", "temperature": -1.0}]}, "arms.0.temperature", "or 0; got -1"),
        ({"arms": [{"method": "adlala", "coupling": 0.0}]}, "arms.0.coupling", "or null to derive it"),
        ({"arms": [{"method": "word", "scheme": "BAX"}]}, "arms.0.scheme", "no letter X"),
        ({"arms": [{"method": "word", "scheme": "ABA"}]}, "arms.0.scheme", "begins and ends inside its drift"),
        ({"arms": [{"method": "word", "scheme": "M", "space": "circles"}]}, "arms.0.", "averages the noise"),
        ({"arms": [{"method": "adl", "temperature": 0.0}]}, "arms.0.temperature", "at temperature 0"),
        ({"depth": 1, "arms": [{"method": "o_od"}]}, "depth", "choose 2 or more layers"),
        ({"painted": [[0.0, 0.0, 2]]}, "painted", r"\[x, y, 0 or 1\]"),
        ({"painted": [[0.0, 0.0, 1]] * 601}, "painted", "up to 600"),
        ({"more_painted": [[0.0, 0.0, 1]] * 601}, "painted", "up to 600"),
        ({"more_painted": 1}, "painted", "up to 600"),
        ({"arms.0.lr": 0.1}, "arms", "no 'arms.0.lr': there are 0 arms"),
        ({"arms": [{"method": "sgd"}], "arms.0.method": "adam"}, "arms.0.method", "give arms.0"),
        ({"arms": [{"method": "sgd"}], "arms.0": "adam"}, "arms.0", "must be an object"),
        ({"arms": [{"method": "sgd"}], "arms.0.lr": 9}, "arms.0.lr", "from 0.0001 to 2"),
        ([], "settings", "must be an object"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: Any, name: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as found:
        read_settings(given, Settings())
    assert found.value.name.startswith(name)


def test_what_two_pages_set_at_once_is_kept() -> None:
    """A page sends the setting it changes, since it may not have heard of another one yet."""
    settings = read_settings({"arms": [{"method": "sgd"}, {"method": "c_od"}], "data": "painted"}, Settings())
    for given in ({"arms.0.lr": 0.02}, {"arms.0.momentum": 0.5}, {"arms.1": {"method": "adam", "lr": 0.03}}):
        settings = read_settings(given, settings)
    assert [arm.to_json() for arm in settings.arms] == [
        {"method": "sgd", "lr": 0.02, "momentum": 0.5, "weight_decay": 0.0},
        {"method": "adam", "lr": 0.03},
    ]
    for point in ([0.1, 0.2, 1], [0.3, 0.4, 0]):
        settings = read_settings({"more_painted": [point]}, settings)
    assert settings.painted == ((0.1, 0.2, 1.0), (0.3, 0.4, 0.0))


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_every_setting_of_every_method_acts_at_once(method: str, replicas: int) -> None:
    run = begin({"method": method}, replicas=replicas)
    advance(run, 3)
    before = run.arms[0]
    live = {name: value for name, value in METHODS[method].settings.items() if ARM_CONTROLS[name].live}
    given = {name: 0.9 * value if isinstance(value, float) and value else 0.02 for name, value in live.items()}
    assert change(run, arms=[{"method": method, **given}])
    assert run.arms[0] is before
    acting = given.keys() - unused(method, METHODS[method].settings)  # "word" has no radii where weights are free
    assert {one.name: one.value for one in run.changes} == {name: given[name] for name in acting}
    for name, found in places(method).items():
        for key, groups in found:
            assert [group[key] for group in before.optimizer.param_groups[groups]] == [
                given[name] for _ in before.optimizer.param_groups[groups]
            ]
    advance(run, 6)
    assert before.step == 9
    assert not before.stopped
    shown = numbers(run, 0)
    assert math.isnan(shown.pop("residual")) != (method.startswith(("c_", "s_", "o_")))
    assert all(map(math.isfinite, shown.values()))
    for kind in diagnostics.KINDS.values():
        message = frames.Message("part")
        message.header["content"] = kind(run, 0, message.put)
        assert message.pack()


def test_constrained_arms_are_the_presets() -> None:
    arm = {"lr": 0.1, "temperature": 0.0, "radius": 0.5, "output_radius": 2.0}
    run = begin({"method": "c_od", **arm}, {"method": "o_od", "lr": 0.1})
    advance(run, 20)
    for number, make in enumerate(
        (
            lambda model: presets.c_cola_od(model, 0.1, (0.5, 0.5, 2.0)),
            lambda model: presets.o_cola_od(model, 0.1),
        )
    ):
        model, _ = recipe.networks([2, 6, 6, 1], torch.nn.ReLU, "default", 1, 3)
        with contextlib.suppress(UserWarning):
            optimizer = _quietly(make, model)
        other = recipe.Arm(model, optimizer, {}, {})
        for _ in range(20):
            other.advance(run.batches)
        mine = dict(run.arms[number].model.named_parameters())
        assert all(torch.allclose(p, mine[name], atol=1e-6) for name, p in model.named_parameters())


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def _quietly(make: Any, model: Any) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(model)


def test_a_smaller_radius_is_taken_up_before_the_next_step() -> None:
    run = begin({"method": "c_ud"}, {"method": "s_ud"})
    advance(run, 5)
    assert change(run, arms=[{"method": "c_ud", "radius": 0.05}, {"method": "s_ud", "radius": 0.05}])
    assert run.arms[0].model.get_parameter("0.weight").abs().max() <= 0.05
    assert run.arms[1].model.get_parameter("0.weight").norm(dim=1).max() <= 0.05
    assert max(numbers(run, 0)["residual"], numbers(run, 1)["residual"]) < 1e-5
    advance(run, 5)
    assert run.arms[0].model.get_parameter("0.weight").abs().max() <= 0.05


def test_the_first_replica_is_the_run_alone() -> None:
    alone, several = (begin({"method": "baoab"}, replicas=replicas) for replicas in (1, 4))
    for run in (alone, several):
        advance(run, 30)
    for name, p in alone.arms[0].model.named_parameters():
        assert torch.allclose(p, several.arms[0].model.get_parameter(name)[0], atol=1e-5)
    assert several.numbers(several.arms[0])["test_loss"].shape == (4,)


def test_what_needs_a_new_run() -> None:
    run = begin({"method": "sgd"}, {"method": "word"})
    assert not change(run, width=7)
    assert not change(run, seed=4)
    assert not change(run, data="xor")
    assert not change(run, arms=[{"method": "sgd"}])
    assert not change(run, arms=[{"method": "adam"}, {"method": "word"}])
    assert not change(run, arms=[{"method": "sgd"}, {"method": "word", "scheme": "OBA"}])
    assert run.changes == []
    assert change(run, **{"arms.1.radius": 0.3})  # which free weights do not have
    assert run.changes == []
    assert run.again().settings.arms[1].values["radius"] == 0.3
    assert change(run, batch=5)
    assert run.batches.size == 5
    assert run.again(width=7).settings == replace(run.settings, width=7)


def test_there_are_temperatures_after_every_step() -> None:
    """Also when the thermometer has just begun anew."""
    run = begin({"method": "baoab"})
    for _ in range(70):
        run.advance()
        assert len(run.arms[0].temperatures()) == 3, run.step


@pytest.mark.filterwarnings("error")
def test_what_an_optimizer_finds_between_steps_is_noted() -> None:
    run = begin({"method": "adl"})
    advance(run, 2)
    assert change(run, **{"arms.0.lr": 1.4})
    advance(run, 2)
    frames.measure(run, 0)
    assert "thermostat_time is 4, less than 5 steps of lr = 1.4" in run.notes[0][0]


def test_an_arm_whose_loss_is_not_finite_stops_and_the_other_goes_on() -> None:
    run = begin({"method": "sgd"}, {"method": "baoab"})
    with torch.no_grad():
        run.arms[0].model.get_parameter("0.weight").fill_(torch.inf)
    advance(run, 4)
    assert "not finite" in run.arms[0].stopped
    assert [arm.step for arm in run.arms] == [0, 4]
    assert run.going
    message = frames.Message("frame")
    assert frames.measure(run, 0)["train_loss"][0] is None
    assert frames.measure(run, 0)["test_accuracy"][0] is None
    frames.field(message, run.arms[0], frames.Grid().take(32, 1.0))
    for kind in diagnostics.KINDS.values():
        message.header[kind.__name__] = kind(run, 0, message.put)
    assert message.pack()


def test_a_loss_that_overflows_is_left_out_of_the_line() -> None:
    """The weights are finite, what the network makes of them is not."""
    run = begin({"method": "sgd"})
    with torch.no_grad():
        for layer in (0, 2, 4):
            run.arms[0].model.get_parameter(f"{layer}.weight").fill_(1e20)
    message = frames.Message("frame")
    found = diagnostics.line(run, 0, message.put)
    values = message.arrays[found["loss"]]
    assert np.isfinite(values[0])
    assert not np.isfinite(values[-1])
    assert message.pack()


def test_painted_points_are_taken_up_while_the_run_goes() -> None:
    points = [[0.1 * i, -0.1 * i, float(i % 2)] for i in range(8)]
    run = begin({"method": "adam"}, data="painted", painted=points[:1])
    assert not run.going
    assert change(run, batch=3)
    assert change(run, **{"arms.0.lr": 0.01})
    assert run.again().settings.batch == 3
    assert not change(run, painted=points[:3])
    run = begin({"method": "adam"}, data="painted", painted=points[:5])
    advance(run, 3)
    assert change(run, painted=points)
    assert [len(run.x), len(run.x_test)] == [6, 2]
    assert run.x_test[1].tolist() == pytest.approx(points[7][:2])
    advance(run, 3)
    assert run.step == 6
    assert not change(run, painted=points[1:])


# ── the script ───────────────────────────────────────────────────────────────────────────────────


def printed(source: str) -> list[dict[str, float]]:
    """The numbers that a script prints, arm by arm."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        exec(compile(source, "script", "exec"), {"__name__": "__main__"})
    arms: list[dict[str, float]] = []
    for line in text.getvalue().splitlines():
        if not line.startswith("  "):
            arms.append({})
        elif line.startswith("  layer"):
            layer, rest = line.strip().split(": ", 1)
            arms[-1] |= {f"{layer} {name}": float(value) for name, value in re.findall(r"(\w+) ([-\d.e+nan]+)", rest)}
        else:
            name, value = line.strip().rsplit(maxsplit=1)
            arms[-1][name.strip().replace(" ", "_")] = float(value)
    return arms


PAINTED = [[0.1 * i, (-1) ** i * 0.07 * i, float(i % 2)] for i in range(12)]
CHANGES = [
    ([{"method": "c_od"}, {"method": "adlala"}], {},
     {"batch": 5, "arms": [{"method": "c_od", "lr": 0.02, "radius": 0.3}, {"method": "adlala", "coupling": None}]}),
    ([{"method": "word", "scheme": "BAFEFAB", "space": "spheres"}, {"method": "multirate"}],
     {"data": "painted", "painted": PAINTED[:7]}, {"painted": PAINTED}),
    ([{"method": "o_ud", "temperature": 1e-4}, {"method": "sgd", "momentum": 0.9}],
     {"data": "waves", "replicas": 2, "start": "small", "activation": "Tanh"},
     {"arms": [{"method": "o_ud", "temperature": 1e-3}, {"method": "sgd", "weight_decay": 0.01}]}),
    # The first arm's loss overflows after a few steps.
    ([{"method": "baoab", "lr": 2.0, "temperature": 1.0}, {"method": "sgd"}],
     {"depth": 6, "width": 20, "scale": 3.0}, {"batch": 5}),
    ([{"method": "lol"}], {"data": "circles"}, {"arms": [{"method": "lol", "friction": 2.0}]}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize(("arms", "settings", "changes"), CHANGES)
def test_the_script_repeats_every_number(arms: Any, settings: Any, changes: Any) -> None:
    run = begin(*arms, **settings)
    advance(run, 12)
    assert change(run, **changes)
    advance(run, 9 if len(arms) > 1 else 70)  # the thermometer begins anew after 64
    found = printed(script(run))
    assert len(found) == len(arms)
    for number, said in enumerate(found):
        expected = {**numbers(run, number), "curvature": recipe.curvature(run.arms[number].model, run.settings.bound)}
        kinds = ("temperature", "kinetic", "configurational")
        for layer, row in enumerate(run.arms[number].temperatures(), 1):
            expected |= {f"layer {layer} {kind}": value for kind, value in zip(kinds, row, strict=True)}
        assert {*NUMBERS, "curvature"} <= set(said)
        assert said.keys() == expected.keys()
        assert said == pytest.approx(expected, rel=1e-7, nan_ok=True)


def test_the_table_has_a_row_for_each_step_looked_at() -> None:
    run = begin({"method": "sgd"}, {"method": "c_od"})
    for _ in range(3):
        shown = [frames.measure(run, number) for number in (0, 1)]
        advance(run, 2)
    head, *rows = [line.split(",") for line in table(run).splitlines() if not line.startswith("#")]
    assert head[:2] == ["step", "A SGD: train_loss"]
    assert head[-1] == "B C-SGLD: residual"
    assert [row[0] for row in rows] == ["0", "2", "4"]
    assert float(rows[-1][1]) == pytest.approx(shown[0]["train_loss"][0])


def test_the_table_and_the_script_hold_the_settings() -> None:
    run = begin({"method": "adl", "lr": 1e-3}, {"method": "c_od"}, data="painted", painted=[[0, 0, 0], [1, 1.5, 1]])
    first = run.settings
    advance(run, 2)
    change(run, batch=3, **{"arms.1.lr": 0.1})
    advance(run, 1)
    change(run, more_painted=[[0.5, -1e-3, 1]])
    comments = [line for line in table(run).splitlines() if line.startswith("#")]
    assert comments[1:] == [
        "# from step 0: painted=2 points", "# from step 2: batch=3", "# from step 2: B.lr=0.1",
        "# from step 3: painted=3 points",
    ]  # fmt: skip
    assert linked(comments[0]) == replace(first, painted=run.settings.painted)
    assert linked(script(run)) == run.settings
    assert fragment(first).endswith("A.coupling=derived&A.driving_noise=derived&B=c_od&B.lr=0.05&B.temperature=5e-05&"
                                    "B.radius=1&B.output_radius=5&painted=0_0_0*1_1.5_1")  # fmt: skip


def linked(text: str) -> Settings:
    """The settings of the first link in a text, read as share.js does."""
    pairs = dict(parse_qsl(re.findall(r"#(data=\S+)", text)[0]))
    arms: dict[str, dict[str, Any]] = {}
    given: dict[str, Any] = {}
    for name, word in pairs.items():
        value = None if word == "derived" else float(word) if re.fullmatch(r"-?[\d.]+(e-\d+)?", word) else word
        letter, _, own = name.partition(".")
        if letter in "AB":
            arms.setdefault(letter, {})[own or "method"] = value
        elif name == "painted":
            given[name] = [[float(x) for x in point.split("_")] for point in word.split("*")]
        else:
            given[name] = value
    return read_settings({**given, "arms": [arms[letter] for letter in sorted(arms)]}, Settings())


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def test_long_series_are_thinned_and_keep_their_ends() -> None:
    series = Series(("a", "b"))
    for step in range(0, 50_000, 7):
        series.add(step, (step, -step))
    steps, a, b = series.table()
    assert MOST / 4 < len(steps) <= MOST
    assert steps[0] == 0
    assert steps[-1] > 49_000
    assert (np.diff(steps) > 0).all()
    assert (a == steps).all()
    assert (b == -steps).all()


def unpack(message: bytes) -> tuple[dict[str, Any], list[Any]]:
    """What message.js does."""
    size = int.from_bytes(message[:4], "little")
    header, at, arrays = json.loads(message[4 : 4 + size]), 4 + size, []
    for kind, count in header["arrays"]:
        array = np.frombuffer(message, f"<{kind}", count, at)
        arrays.append(array)
        at += -(-array.nbytes // 4) * 4
    assert at == len(message)
    return header, arrays


def test_a_message_is_read_back() -> None:
    message = frames.Message("frame", step=7)
    odd, plain = torch.tensor([1, 2, 3], dtype=torch.uint8), torch.tensor([0.5, -1.5], dtype=torch.float64)
    assert [message.put(odd), message.put(plain)] == [0, 1]
    header, arrays = unpack(message.pack())
    assert (header["kind"], header["step"]) == ("frame", 7)
    assert [array.tolist() for array in arrays] == [[1, 2, 3], [0.5, -1.5]]


def test_the_field_is_the_network_on_a_grid_and_its_mean_over_replicas() -> None:
    run = begin({"method": "sgd"}, replicas=4)
    arm = run.arms[0]
    message = frames.Message("frame")
    found = frames.field(message, arm, frames.Grid().take(32, 2.0))
    corner = torch.tensor([[-2.0, 2.0]])  # the first point is the upper left one
    probability = torch.sigmoid(arm.model(corner)).flatten().detach()
    logit = float(torch.logit(probability.mean()))
    assert message.arrays[found["logits"]][0] == pytest.approx(logit, rel=1e-5)
    assert message.arrays[found["spread"]][0] == pytest.approx(510 * float(probability.std()), abs=1.0)


def test_equations_have_no_marks_that_fonts_leave_out() -> None:
    """A dot over ξ is invisible in some fonts, and its equation then another one."""
    text = (files("holonom.playground") / "page" / "explain.js").read_text(encoding="utf-8")
    assert "dξ = ε(" in text
    assert re.findall("[Α-Ωα-ω][\u0300-\u036f]", text) == []


@pytest.mark.parametrize("replicas", [1, 4])
def test_the_boundary_of_tiny_outputs_is_where_they_change_sign(replicas: int) -> None:
    """From weights near zero outputs differ by less than 1e-3 over the plane."""
    run = begin({"method": "sgd"}, replicas=replicas, start="small", depth=1)
    arm, points = run.arms[0], frames.Grid().take(32, 2.0)
    with torch.no_grad():
        for parameter in arm.model.parameters():
            parameter[..., :1] *= 0.1
        output = arm.model(points).squeeze(-1)
        arm.model.get_parameter("2.bias").sub_(output.flatten(-1).median(-1).values.view(-1, *[1] * (replicas > 1)))
        output = arm.model(points).squeeze(-1).double()
    assert float(output.max() - output.min()) < 2e-3
    message = frames.Message("frame")
    found = frames.field(message, arm, points)
    shown = message.arrays[found["logits"]]
    mean = torch.logit(torch.sigmoid(output).reshape(-1, len(points)).mean(0)).numpy()
    assert np.unique(shown).size > 500
    assert np.array_equal(shown > 0, mean > 0)


def test_weights_are_shown_in_their_spaces() -> None:
    run = begin({"method": "c_ud", "radius": 0.5}, {"method": "s_ud", "radius": 0.7})
    advance(run, 4)
    message = frames.Message("part")
    circles, spheres = (diagnostics.weights(run, number, message.put) for number in (0, 1))
    weight = run.arms[0].model.get_parameter("0.weight")
    points = message.arrays[circles[0]["points"]]
    assert circles[0] == {"layer": 1, "shape": [6, 2], "space": "Circle", "radius": 0.5, "points": 0}
    assert np.allclose(0.5 * points[:, 0], weight.detach().flatten(), atol=1e-6)
    assert np.allclose(np.hypot(*points.T), 1.0, atol=1e-6)
    rows = message.arrays[spheres[0]["points"]]
    assert np.allclose(0.7 * rows, run.arms[1].model.get_parameter("0.weight").detach(), atol=1e-6)
    run = begin({"method": "o_od"}, {"method": "sgd"})
    content = diagnostics.weights(run, 0, message.put)
    assert [one["space"] for one in content] == ["Free", "Orthogonal", "Free"]
    assert np.allclose(message.arrays[content[1]["values"]], 1.0, atol=1e-5)


def test_the_line_ends_at_the_present_loss() -> None:
    run = begin({"method": "sgd"})
    start = numbers(run, 0)["train_loss"]
    advance(run, 30)
    message = frames.Message("part")
    found = diagnostics.line(run, 0, message.put)
    along, values = (message.arrays[found[name]] for name in ("along", "loss"))
    assert values[0] == pytest.approx(start, abs=1e-5)
    assert values[list(along).index(1.0)] == pytest.approx(numbers(run, 0)["train_loss"], abs=1e-5)


def test_a_frame_leaves_time_for_training() -> None:
    """Twenty frames a second of the default network, two arms and their finest fields, take half a core at most."""
    engine = Engine(PRESETS[DEFAULT].settings, Hub())
    advance(engine.run, 5)
    for number in range(2):
        for kind in diagnostics.KINDS.values():
            kind(engine.run, number, frames.Message("part").put)
    engine.frame()
    begin = time.thread_time()
    for _ in range(10):
        engine.frame()  # at rest: fields have their finest grid
    assert (time.thread_time() - begin) / 10 < 0.5 / 20
