"""The benchmark at its quickest: it runs, and writes what it measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import constrain

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("training", [False, True], ids=["back to back", "in training"])
def test_quick_run_writes_its_rows(training: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.run", "--quick", "--only", "matrix", "--out", str(tmp_path)]
    command += [] if training else ["--back-to-back", "--targets"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    record = json.loads((tmp_path / "bench.json").read_text())
    assert ("pass" in record["machine"]["before a step"]) == training
    measured = {row["name"]: row for row in record["rows"] if row["status"] == "measured"}
    assert measured["torch SGD, momentum 0.9, foreach"]["ratio"] == 1
    ours = [row for row in measured.values() if row["role"] == "holonom"]
    assert ours
    assert ("one 32×32×32 product" in measured) == training
    assert all(row["error"] < 1e-5 and row["milliseconds"] > 0 for row in ours)
    assert (tmp_path / "bench.png").stat().st_size > 1000


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("arm", constrain.ARMS)
def test_every_constrained_step_is_measured_on_few_weights(arm: str) -> None:
    row = constrain.measure(arm, [(12, 4), (6, 4), (4, 12), (4, 4), (4,)], "cpu", rounds=2, steps=1)
    assert row["arm"] == arm
    assert row["step_ms"] > 0
    row["ratio"] = 1.0
    assert ("target" in constrain.line(row)) == arm.startswith("spheres")
