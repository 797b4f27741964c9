"""Studies that take hours at the published size run in pieces: interrupted, resumed, with the same result."""

from __future__ import annotations

import json
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from holonom import training
from holonom.errors import DataError
from holonom.experiments import artifacts
from holonom.experiments.reproduce import reproduce
from holonom.experiments.setups.cifar import training as cifar
from holonom.experiments.setups.cifar.networks import Networks

from ..random_images import image_set
from .small import data_root, need_data

# Which files, counted as they are written, are followed by an interruption.
PIECES = {"appC": (2, 4), "fig4": (2, 8), "fig5": (1, 5), "fig6": (1, 4, 12), "fig7": (2, 9), "table2": (1, 6, 20)}


@pytest.mark.studies
@pytest.mark.parametrize("id", PIECES)
def test_pieces_give_what_one_run_gives(id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "cifar10", lambda root: image_set(64, 32))
    monkeypatch.setattr(Networks, "__init__", partialmethod(Networks.__init__, save_every=0.0))
    try:
        whole = run(id, tmp_path / "whole")
    except DataError:
        need_data(id)
        raise
    for number in PIECES[id]:
        with pytest.MonkeyPatch.context() as patch:
            interrupt_after(patch, number)
            with pytest.raises(KeyboardInterrupt):
                run(id, tmp_path / "pieces")
        assert not (tmp_path / "pieces" / id / "result.json").exists()
    joined = run(id, tmp_path / "pieces")
    assert joined["resumed"]
    assert plain(joined["claims"]) == plain(whole["claims"])
    assert plain(joined["tables"]) == plain(whole["tables"])
    for name in ("curves.csv", "runs.csv"):
        assert (tmp_path / "pieces" / id / name).read_text() == (tmp_path / "whole" / id / name).read_text()


def run(id: str, out: Path) -> dict[str, Any]:
    """With the options of every piece, the first one too."""
    replicas = 1 if id == "fig6" else None  # its networks are the slowest
    options: dict[str, Any] = {"device": "cpu", "out": out, "root": data_root(), "replicas": replicas}
    return reproduce(id, scale="smoke", resume=True, quiet=True, **options)


def plain(part: Any) -> str:
    return json.dumps(part, default=float)


def interrupt_after(patch: pytest.MonkeyPatch, files: int) -> None:
    written: list[Any] = []
    original = training.save

    def save(content: Any, path: Path) -> None:
        original(content, path)
        written.append(path)
        if len(written) == files:
            raise KeyboardInterrupt

    for module in (training, artifacts):
        patch.setattr(module, "save", save)
