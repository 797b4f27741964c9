"""Commands that write refuse a folder that they cannot write to: one line, before anything runs."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holonom.cli import main

RECORD = '{"id": "fig0", "scale": "ci", "seed": 0, "device": "an abacus", "seconds": 1.0, "claims": []}'


@pytest.fixture
def images(tmp_path: Path) -> Path:
    np.savez(tmp_path / "images.npz", images=np.zeros((2, 4, 4), np.uint8))
    return tmp_path / "images.npz"


def refused(capsys: Any, *words: object) -> str:
    assert main([str(word) for word in words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    text: str = said.err
    return text


def commands(tmp_path: Path, folder: Path, images: Path) -> dict[str, list[object]]:
    """Every command that writes, with the folder as its place; and what its message must advise."""
    return {
        "another with --out DIR": ["reproduce", "fig1.9", "--quiet", "--out", folder],
        "--out DIR, or change": ["label", images, "--port", "0", "--out", folder],
    }


def test_a_folder_that_is_a_file(tmp_path: Path, images: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("holonom.experiments.reproduce.reproduce", lambda *_, **__: pytest.fail("it ran"))
    (tmp_path / "file").write_text("")
    for advice, words in commands(tmp_path, tmp_path / "file" / "results", images).items():
        said = refused(capsys, *words)
        assert f"cannot write to the folder {tmp_path / 'file' / 'results'} (Not a directory)" in said
        assert advice in said


def test_a_folder_without_permission(tmp_path: Path, images: Path, capsys: Any, monkeypatch: Any) -> None:
    def denied(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    folder = tmp_path / "results"
    (folder / "fig0").mkdir(parents=True)
    (folder / "fig0" / "result.json").write_text(RECORD)
    (tmp_path / "labels").mkdir()
    monkeypatch.setattr(tempfile, "TemporaryFile", denied)
    monkeypatch.setattr("holonom.experiments.reproduce.reproduce", lambda *_, **__: pytest.fail("it ran"))
    for advice, words in {
        **commands(tmp_path, folder, images),
        "copy it and name the copy": ["report", folder],
    }.items():
        said = refused(capsys, *words)
        assert f"cannot write to the folder {folder} (Permission denied)" in said
        assert advice in said
    assert not (folder / "report.html").exists()


def test_a_port_in_use_of_the_labelling_page(tmp_path: Path, images: Path, capsys: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = refused(capsys, "label", images, "--port", port)
    assert said.startswith(f"holonom: port {port} of 127.0.0.1 cannot be used (")
    assert said.endswith("choose another with --port, or --port 0 for any\n")
