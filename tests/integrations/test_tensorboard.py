"""``--tensorboard`` writes event files that TensorBoard reads."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from holonom.cli import main
from holonom.experiments import base
from holonom.experiments.claims import Claim, fact
from holonom.experiments.run import Run

pytestmark = pytest.mark.integrations
accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def logging(run: Run, settings: SimpleNamespace) -> list[Claim]:
    for step in range(3):
        run.log.add_scalar("fig0/arm/loss", 1 / (1 + step), step)
    return [fact("one is one", "1", 1.0, True)]


def test_scalars_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scales = {scale: {"replicas": 1} for scale in base.SCALES}
    monkeypatch.setitem(base._registered, "fig0", base.Experiment("fig0", "Quick", "", "", scales, logging))
    assert main(["reproduce", "fig0", "--tensorboard", "--quiet", "--device", "cpu", "--out", str(tmp_path)]) == 0
    events = accumulator.EventAccumulator(str(tmp_path / "fig0" / "tensorboard"))
    events.Reload()
    found = {event.step: event.value for event in events.Scalars("fig0/arm/loss")}
    assert found == pytest.approx({0: 1.0, 1: 1 / 2, 2: 1 / 3})
