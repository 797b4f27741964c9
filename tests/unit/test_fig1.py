"""The main job at a size of seconds: it trains, judges, draws and writes what it says."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from holonom.data import spirals
from holonom.experiments import fig1


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_smoke_run_writes_result_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fig1.main(["--epochs", "3", "--replicas", "2", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "result.json").read_text())
    assert set(record["methods"]) == {"SGD", "C-SGD", "SGLD", "C-SGLD"}
    assert record["methods"]["C-SGLD"]["residual"] < 1e-5
    assert {claim["verdict"] for claim in record["claims"]} <= {"holds", "does not hold", "inconclusive"}
    assert (tmp_path / "fig1.png").stat().st_size > 10_000
    assert "fig1.png" in capsys.readouterr().out


def test_replicas_are_independent() -> None:
    """A replica's outputs depend on its own parameters and inputs alone."""
    model = fig1.Perceptrons(3)
    x = torch.randn(3, 5, 2)
    before = model(x)
    with torch.no_grad():
        model.weight1[1] += 1
    after = model(x)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])


def test_an_epoch_visits_every_point_once() -> None:
    index = fig1.batches(4, 100, 2, torch.Generator().manual_seed(0))
    assert index.shape == (50, 4, 2)
    for replica in range(4):
        assert sorted(index[:, replica].flatten().tolist()) == list(range(100))


def test_verdicts() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=20) * 0.1
    assert fig1.verdict(noise + 1, np.zeros(20))["verdict"] == "holds"
    assert fig1.verdict(np.zeros(20), noise + 1)["verdict"] == "does not hold"
    assert fig1.verdict(rng.normal(size=20), rng.normal(size=20))["verdict"] == "inconclusive"
    assert fig1.verdict(np.ones(1), np.zeros(1))["verdict"] == "inconclusive"


def test_spirals_are_two_arms_a_half_turn_apart() -> None:
    x, y = spirals(4000, noise=0.0, generator=torch.Generator().manual_seed(0))
    radius = x.norm(dim=1)
    angle = torch.atan2(x[:, 1], x[:, 0])
    expected = 4 * torch.pi * radius + torch.pi * y
    gap = torch.remainder(angle - expected + torch.pi, 2 * torch.pi) - torch.pi
    assert gap.abs().max() < 1e-3
    assert y.mean() == 0.5
    assert radius.square().mean().item() == pytest.approx(0.5, abs=0.02)  # t is uniform
    with pytest.raises(ValueError, match="at least 2"):
        spirals(1)
