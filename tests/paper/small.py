"""Run an experiment at its smallest size, check what every result must have, and make up small data."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holonom.data import ImageSet, list_sets
from holonom.experiments.base import find
from holonom.experiments.reproduce import reproduce
from holonom.experiments.run import Run
from holonom.experiments.verdicts import UNJUDGED


def data_root() -> Path:
    return Path(os.environ.get("HOLONOM_DATA") or Path(__file__).parents[3] / "shared" / "data")


def need_data(id: str) -> None:
    missing = [s.name for s in list_sets(data_root()) if s.name in find(id).data and s.present < s.files]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not in {data_root()}; set HOLONOM_DATA")


def small_run(folder: Path, replicas: int = 2) -> Run:
    return Run("test", "smoke", replicas, 0, torch.device("cpu"), folder, quiet=True)


def check_smoke(id: str, folder: Path) -> dict[str, Any]:
    """result.json has its fields, claims are finite, figures are pictures; nothing is judged at this size."""
    reproduce(id, scale="smoke", device="cpu", out=folder, root=data_root(), quiet=True, overwrite=True)
    written: dict[str, Any] = json.loads((folder / id / "result.json").read_text(encoding="utf-8"))
    assert {"id", "scale", "seed", "device", "seconds", "claims"} <= written.keys()
    assert written["id"] == id
    assert written["claims"]
    for claim in written["claims"]:
        empty = claim["exact"] or "no set has images of both kinds" in claim["detail"]
        assert claim["margin"] is None if empty else math.isfinite(claim["margin"]), claim
        assert claim["verdict"] == UNJUDGED
    assert written["tables"]
    assert written["figures"]
    for figure in written["figures"]:
        assert (folder / id / figure["file"]).read_bytes().startswith(b"\x89PNG")
    return written


def bars(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images that a network learns in a few steps: digit k is a bright bar at height 2k + 4 in noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 10
    images = torch.randint(0, 40, (count, 28, 28), generator=generator, dtype=torch.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * int(label) + 4 : 2 * int(label) + 7, 5:23] += 200
    return images, labels


def bars_as_digits() -> ImageSet:
    """In place of MNIST."""
    return ImageSet(*bars(300, 0), *bars(100, 1))
