"""Images to label and journals of labels, for the labelling tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from holonom.labelling import Journal

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 5, 7), dtype=np.uint8)


def write_images(folder: Path, images: Any = IMAGES) -> Path:
    np.savez(folder / "images.npz", images=images)
    return folder / "images.npz"


def open_journal(folder: Path, person: str = "Ann", images: int = 6, fingerprint: str = "f") -> Journal:
    return Journal(folder, person, images, fingerprint)


def label_all(journal: Journal, labels: list[int]) -> None:
    for image in journal.order:
        journal.label(image, labels[image])
