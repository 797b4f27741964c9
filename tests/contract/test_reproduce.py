"""Runs that are killed, interrupted or split over processes give the numbers of one undisturbed run.

The file is also a program: the command line with one more, tiny experiment, which can send itself a signal.
"""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, distributed, nn

from holonom import presets
from holonom.batches import Shuffled
from holonom.cli import main
from holonom.ensemble import Ensemble
from holonom.experiments import base
from holonom.experiments.claims import Claim, greater
from holonom.experiments.run import Run, accuracy_and_loss
from holonom.experiments.setups.planar.spiral_circle import loss

SETTINGS = {"replicas": 3, "epochs": 4}
TEMPERATURES = {"cold": 0.0, "hot": 1e-2}
EVALUATIONS = 8
EVALUATED = {"number": 0}


def tiny(run: Run, settings: SimpleNamespace) -> list[Claim]:
    """Two temperatures as one grid of circle-constrained perceptrons, every replica with other data; then SGD."""
    points = torch.stack([torch.randn(20, 2, generator=g) for g in run.generators()])
    x = points.repeat(len(TEMPERATURES), 1, 1)
    grid = train(run, settings, "grid", x, lambda e: presets.c_cola_od(e, 0.1, 2.0, e.spread([*TEMPERATURES.values()])))
    fits = grid.split([*TEMPERATURES])
    fits["SGD"] = train(run, settings, "SGD", points, lambda e: torch.optim.SGD(e.parameters(), 0.1, momentum=0.9))
    run.save_curves(fits)
    run.summary(fits, {"train_loss": "loss"})
    return [greater("noise costs", "more", fits["hot"].final("train_loss"), fits["cold"].final("train_loss"))]


def train(run, settings, name, x, make_optimizer):
    ensemble = run.ensemble(
        lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), len(x) // len(run.generators())
    )
    y = (x[..., 0] * x[..., 1] > 0).float()
    batches = Shuffled(x, y, 5, ensemble.seeds, own_data=True)
    measure = accuracy_and_loss(loss, x, y, "train", shared=False)

    def evaluate(ensemble: Ensemble) -> dict[str, Tensor]:
        EVALUATED["number"] += 1
        if os.environ.get("STOP_AT") == str(EVALUATED["number"]):
            os.kill(os.getpid(), int(os.environ["STOP_BY"]))
        return measure(ensemble)

    steps = settings.epochs * batches.per_epoch
    return run.fit(name, ensemble, make_optimizer(ensemble), loss, batches, steps, evaluate, EVALUATIONS)


TINY = base.Experiment("fig0", "Tiny", "nowhere", "Nothing.", dict.fromkeys(base.SCALES, SETTINGS), tiny)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would start with it ignored
    torch.set_num_threads(1)
    base._registered[TINY.id] = TINY
    sys.exit(main())


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(base._registered, TINY.id, TINY)
    monkeypatch.setitem(EVALUATED, "number", 0)


def here(out: Path, *options: str) -> int:
    return main(["reproduce", TINY.id, "--device", "cpu", "--quiet", "--out", str(out), *options])


def elsewhere(out: Path, *launcher: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The same in another process."""
    command = [sys.executable, *launcher, "-m", __name__, "reproduce", TINY.id, "--device", "cpu", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}
    root = Path(__file__).parents[2]
    return subprocess.run(
        [*command, "--out", str(out)], cwd=root, env=environment, capture_output=True, text=True, timeout=120
    )


def result(out: Path) -> dict:
    return json.loads((out / TINY.id / "result.json").read_text())


def curves(out: Path) -> tuple[list, np.ndarray]:
    """What was measured, and the values."""
    with open(out / TINY.id / "curves.csv", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [row[:-1] for row in rows], np.array([float(row[-1]) for row in rows])


def weights(out: Path) -> dict[str, Tensor]:
    places = sorted((out / TINY.id / "checkpoints").glob("*.pt"))
    assert places
    states = {place.stem: torch.load(place, weights_only=True) for place in places}
    return {f"{arm} {name}": value for arm, state in states.items() for name, value in state["model"].items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(base._registered, TINY.id, TINY)
        assert here(out) == 0
    return out


def assert_bit_equal(out: Path, undisturbed: Path) -> None:
    expected = weights(undisturbed)
    found = weights(out)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    assert result(out)["claims"] == result(undisturbed)["claims"]
    for name in ("curves.csv", "runs.csv"):
        assert (out / TINY.id / name).read_text() == (undisturbed / TINY.id / name).read_text()


# 1 + 8 evaluations of the grid, then 1 + 8 of SGD: the first arm stops between checkpoints, or the second does.
@pytest.mark.parametrize("stop", [6, 13])
def test_a_killed_run_resumes_bit_equal(tmp_path, undisturbed, stop):
    done = elsewhere(tmp_path, STOP_AT=str(stop), STOP_BY=str(int(signal.SIGKILL)))
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / TINY.id / "result.json").exists()
    assert here(tmp_path, "--resume") == 0
    assert EVALUATED["number"] == 2 * (1 + EVALUATIONS) - (stop - 1)  # only the interrupted evaluation is repeated
    assert result(tmp_path)["resumed"]
    assert_bit_equal(tmp_path, undisturbed)


def test_an_interrupted_run_says_how_to_continue(tmp_path, undisturbed):
    done = elsewhere(tmp_path, STOP_AT="4", STOP_BY=str(int(signal.SIGINT)))
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert f"holonom reproduce {TINY.id} --device cpu --quiet --out {tmp_path} --resume" in done.stderr
    assert here(tmp_path, "--resume") == 0
    assert_bit_equal(tmp_path, undisturbed)


@pytest.mark.skipif(not (distributed.is_available() and distributed.is_gloo_available()), reason="needs gloo")
def test_two_processes_give_what_one_does(tmp_path, undisturbed):
    done = elsewhere(tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("result.json") == 1  # one of them prints
    assert result(tmp_path)["command"].startswith("torchrun --nproc-per-node 2 -m holonom reproduce fig0")
    labels, values = curves(tmp_path)
    expected_labels, expected = curves(undisturbed)
    assert labels == expected_labels  # three replicas of every arm, in the same order
    np.testing.assert_allclose(values, expected, rtol=2e-5)
    [claim], [expected_claim] = result(tmp_path)["claims"], result(undisturbed)["claims"]
    assert claim["margin"] == pytest.approx(expected_claim["margin"], rel=1e-3)
    assert claim["verdict"] == expected_claim["verdict"]


@pytest.mark.parametrize(
    ("options", "difference"), [(["--seed", "1"], "seed 0, not 1"), (["--replicas", "2"], "replicas 3, not 2")]
)
def test_checkpoints_of_other_settings_are_refused(tmp_path, capsys, options, difference):
    assert here(tmp_path) == 0
    before = weights(tmp_path)
    capsys.readouterr()
    assert here(tmp_path, "--resume", *options) == 2
    said = capsys.readouterr().err
    assert difference in said
    assert "other settings" in said
    assert all(torch.equal(value, before[name]) for name, value in weights(tmp_path).items())


@pytest.mark.parametrize("name", ["SGD-0.pt", "run.json"])
def test_a_damaged_checkpoint_is_named(tmp_path, capsys, name):
    assert here(tmp_path) == 0
    place = tmp_path / TINY.id / "checkpoints" / name
    place.write_bytes(place.read_bytes()[:100])
    assert here(tmp_path, "--resume") == 2
    assert str(place) in capsys.readouterr().err


def test_an_interrupted_run_is_not_lost_to_another(tmp_path, capsys):
    done = elsewhere(tmp_path, STOP_AT="6", STOP_BY=str(int(signal.SIGKILL)))
    assert done.returncode == -signal.SIGKILL
    before = weights(tmp_path)
    assert here(tmp_path) == 2
    assert "--resume to continue that run" in capsys.readouterr().err
    assert all(torch.equal(value, before[name]) for name, value in weights(tmp_path).items())


def test_to_overwrite_is_to_start_afresh(tmp_path):
    for _ in range(2):
        EVALUATED["number"] = 0
        assert here(tmp_path, "--overwrite") == 0
        assert EVALUATED["number"] == 2 * (1 + EVALUATIONS)
        assert not result(tmp_path)["resumed"]


def test_resuming_nothing_starts(tmp_path, undisturbed):
    assert here(tmp_path, "--resume") == 0
    assert not result(tmp_path)["resumed"]
    assert_bit_equal(tmp_path, undisturbed)


class Writer:
    """Stands in for TensorBoard's."""

    def __init__(self) -> None:
        self.scalars: dict[tuple[str, int], float] = {}
        self.closed = False

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag, step] = value

    def close(self) -> None:
        self.closed = True


def test_curves_are_logged_on_request(tmp_path, monkeypatch):
    writer = Writer()
    monkeypatch.setattr("holonom.cli.output.require", lambda *_, **__: None)
    monkeypatch.setattr("holonom.experiments.reproduce._writer", lambda folder: writer)
    assert here(tmp_path, "--tensorboard") == 0
    labels, values = curves(tmp_path)
    last = [value for label, value in zip(labels, values) if label[:3] == ["SGD", "train_loss", "16"]]
    assert len(last) == SETTINGS["replicas"]
    assert writer.scalars[f"{TINY.id}/SGD/train_loss", 16] == pytest.approx(np.mean(last), rel=1e-5)
    assert writer.closed
