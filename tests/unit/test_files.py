"""Files of tensors are whole, whoever is killed while writing them and however many write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from holonom._files import load, save
from holonom.errors import CheckpointError


def test_a_killed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "x.pt"
    save({"x": torch.ones(2)}, path)

    def killed(content: Any, partial: Path) -> None:
        partial.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        save({"x": torch.zeros(2)}, path)
    assert load(path, "")["x"].tolist() == [1, 1]


def test_two_processes_that_write_one_file_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, original = tmp_path / "x.pt", torch.save

    def while_another_writes(content: Any, partial: Path) -> None:
        monkeypatch.setattr(torch, "save", original)
        with monkeypatch.context() as other, open(partial, "wb") as file:
            other.setattr(os, "getpid", lambda: -1)
            save("theirs", path)
            original(content, file)
        assert load(path, "") == "theirs"

    monkeypatch.setattr(torch, "save", while_another_writes)
    save("ours", path)
    assert load(path, "") == "ours"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unreadable_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"x\.pt cannot be read \(Weights only load failed\); delete it"):
        load(tmp_path / "x.pt", "delete it")
