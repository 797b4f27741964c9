"""Progress bars: one for each training, or one over all parts of an experiment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import tqdm

from holonom.experiments.progress import bar
from holonom.experiments.run import Run


class Bar:
    """Stands in for tqdm; remembers every bar and every position."""

    made: list[Bar]

    def __init__(self, **options: Any) -> None:
        self.total, self.n, self.closed = options["total"], 0.0, False
        self.seen: list[float] = []
        self.titles = [options["desc"]]
        Bar.made.append(self)

    def update(self, count: float) -> None:
        self.n += count
        self.seen.append(self.n)

    def set_description_str(self, title: str, refresh: bool = True) -> None:
        self.titles.append(title)

    def set_postfix(self, values: Any, refresh: bool = True) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setattr(tqdm, "tqdm", Bar)
    Bar.made = []
    return Run("fig0", "ci", 1, 0, torch.device("cpu"), tmp_path)


def test_parts_of_a_whole_share_one_bar(run: Run) -> None:
    with run.whole({"first": 3.0, "second": 1.0}):
        with run.progress("first", 10) as show:
            show(5, 10)
            show(10, 10)
        with run.progress("not listed", 7) as show:
            show(7, 7)
        with run.progress("second", 2) as show:
            show(1, 2)
    (bar,) = Bar.made
    assert bar.seen == pytest.approx(sorted(bar.seen))
    assert {37.5, 75.0, 87.5, 100.0} <= set(bar.seen)
    assert bar.seen[-1] == bar.total == 100
    assert bar.titles == ["fig0", "fig0 first", "fig0 not listed", "fig0 second", "fig0"]
    assert bar.closed


def test_a_bar_of_its_own_for_every_other_training(run: Run) -> None:
    with run.whole({"first": 1.0}):
        pass
    with run.progress("alone", 4) as show:
        show(4, 4)
    assert [(bar.total, bar.n, bar.closed) for bar in Bar.made] == [(100, 100, True), (4, 4, True)]


def test_a_finished_bar_has_a_space_after_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("fig0", 100, "%", silent=False) as shown:
        shown.update(100)
    assert "fig0 100 %|" in capsys.readouterr().err


def test_time_is_estimated_when_compiling_is_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("fig0", 100, "%", silent=False) as shown:
        said = []
        for seconds, percent in ((60, 0.1), (1, 1.9), (1, 38.0), (1, 60.0)):  # the first minute goes into compiling
            shown.start_t -= seconds
            shown.last_print_t -= seconds
            shown.update(percent)
            said.append(str(shown).rsplit(", ", 1)[1].strip())
    assert said[:2] == ["? left", "? left"]
    assert re.fullmatch(r"0\d:\d\d left", said[2])
    assert said[3] == "00:00 left"
