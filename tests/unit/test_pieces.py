"""Runs in pieces: each trains its share, and whichever finds all trainings goes on."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holonom.cli import main
from holonom.experiments import base
from holonom.experiments.claims import Claim, greater
from holonom.experiments.pieces import Piece, Unfinished
from holonom.experiments.planning import plan
from holonom.experiments.reproduce import reproduce
from holonom.experiments.run import Run

SMALL: dict[str, Any] = {"scale": "smoke", "device": "cpu", "quiet": True}
trained: list[str] = []


def train(run: Run, name: str, value: float) -> Any:
    with run.progress(name, 4) as progress:
        for step in range(1, 5):
            progress(step, 4, None)
    trained.append(name)
    return np.full(3, value)


def search_then_train(run: Run, settings: SimpleNamespace) -> list[Claim]:
    """Four trainings of a search, then three with what it chose."""
    scores = run.each({f"search {k}": partial(train, run, f"search {k}", (k - 2.0) ** 2) for k in range(4)}, (3,))
    best = min(scores, key=lambda name: float(scores[name][0]))
    found = run.each({f"{best}, run {r}": partial(train, run, f"{best}, run {r}", 1.0 + r) for r in range(3)}, (3,))
    run.table("Runs", ["run", "value"], [[name, float(values[0])] for name, values in found.items()])
    values = np.array([values[0] for values in found.values()])
    return [greater("above zero", "", values, 0 * values)]


@pytest.fixture(autouse=True)
def study(monkeypatch: pytest.MonkeyPatch) -> None:
    scales = {scale: {"replicas": 3} for scale in base.SCALES}
    made = base.Experiment("fig0", "Pieces", "", "", scales, search_then_train, splits=True)
    base.catalogue()
    monkeypatch.setitem(base._registered, "fig0", made)
    trained.clear()


def test_pieces_in_two_folders_end_as_the_whole_run(tmp_path: Path) -> None:
    whole = reproduce("fig0", out=tmp_path / "whole", **SMALL)
    trained.clear()
    folders = [tmp_path / name for name in "ab"]

    def make(number: int) -> dict[str, Any]:
        return reproduce("fig0", out=folders[number], resume=True, piece=Piece(number + 1, 2), **SMALL)

    def exchange() -> None:
        for one, other in (folders, folders[::-1]):
            shutil.copytree(one / "fig0", other / "fig0", dirs_exist_ok=True)

    for number in (0, 1):
        with pytest.raises(Unfinished, match=f"piece {number + 1}/2 is done; 2 of the 4 trainings .* are missing"):
            make(number)
    assert trained == ["search 0", "search 2", "search 1", "search 3"]
    exchange()
    for number, missing in ((0, 1), (1, 2)):
        with pytest.raises(Unfinished, match=f"{missing} of the 3 trainings"):
            make(number)
    assert trained[4:] == ["search 2, run 0", "search 2, run 2", "search 2, run 1"]
    assert not any((folder / "fig0" / "result.json").exists() for folder in folders)
    exchange()
    assert make(1)["tables"] == whole["tables"]
    assert len(trained) == 7  # nothing was made twice


def test_a_plan_lists_the_trainings_of_a_piece() -> None:
    found = [plan("fig0", scale="smoke", device="cpu", piece=Piece(number, 3)) for number in (1, 2, 3)]
    assert all(one.complete for one in found)
    assert [len(one.parts) for one in found] == [3, 2, 2]
    assert {(part.runs, part.steps) for one in found for part in one.parts} == {(1, 4)}


def test_the_command_says_what_is_missing(tmp_path: Path, capsys: Any) -> None:
    words = ["reproduce", "fig0", "--scale", "smoke", "--device", "cpu", "--out", str(tmp_path), "--piece", "1/2"]
    assert main(words) == 0
    said = capsys.readouterr().err
    assert f"fig0: piece 1/2 is done; 2 of the 4 trainings that come first are missing in {tmp_path}" in said
    assert "give --resume" in said
    assert main([*words[:-1], "2/2", "--resume"]) == 0  # the other piece, in the same folder
    assert "1/2 is done" not in capsys.readouterr().err
    assert main([*words, "--resume"]) == 0
    assert (tmp_path / "fig0" / "result.json").exists()


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/2", "1/", "-1/2"])
def test_a_piece_is_a_number_of_many(text: str) -> None:
    with pytest.raises(ValueError, match="K/N"):
        Piece.read(text)
    assert str(Piece.read("2/3")) == "2/3"
