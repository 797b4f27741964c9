"""CIFAR-10, from its binary files or from folders of PNG images."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .images import ImageSet, checked
from .registry import lookup
from .root import Root, confirm, find, read, roots

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
RECORDS_PER_FILE = 10_000
PNG_FOLDER = "cifar-10"


def cifar10(root: Root = None, *, verify: bool = True) -> ImageSet:
    """50,000 + 10,000 photographs, (N, 3, 32, 32).

    Read from ``cifar-10-batches-bin/`` (the published binary version), else from ``cifar-10/train`` and
    ``cifar-10/test`` with PNG files named ``<index>_<class>.png``, which needs Pillow. PNG images are put back
    into the published records and so are checked against the same checksums.
    """
    folder = _png_folder(root)
    if folder is None:
        records = [read("cifar-10", file.name, root, verify=verify) for file in lookup("cifar-10").files]
        train, test = b"".join(records[:-1]), records[-1]
    else:
        train, test = (_read_folder(folder / part) for part in ("train", "test"))
        if verify:
            _confirm_records(train + test, folder)
    return checked("cifar-10", ImageSet(*_split(train), *_split(test)), len(CLASSES))


def _png_folder(root: Root) -> Path | None:
    """The folder of PNG images; None if the binary files are present, which come first, or there is no folder."""
    try:
        find("cifar-10", "test_batch.bin", root)
    except DataError:
        folders = [place / PNG_FOLDER for place in roots(root)]
        return next((folder for folder in folders if (folder / "train").is_dir()), None)
    return None


def _read_folder(folder: Path) -> bytes:
    """A folder's images as records in the order of their indices: the label, then the red, green and blue planes."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise DataError("reading PNG images needs Pillow: pip install pillow") from error
    records: dict[int, bytes] = {}
    for path in folder.glob("*.png"):
        match = re.fullmatch(rf"(\d+)_({'|'.join(CLASSES)})\.png", path.name)
        if not match:
            raise DataError(f"{path} should be named <index>_<class>.png with a class among {', '.join(CLASSES)}")
        try:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, UnidentifiedImageError) as error:
            raise DataError(f"{path} is damaged: {error}; replace the file") from error
        if pixels.shape != (32, 32, 3):
            raise DataError(f"{path} should be an image of 32×32, not {pixels.shape[1]}×{pixels.shape[0]}")
        records[int(match[1])] = bytes([CLASSES.index(match[2])]) + pixels.transpose(2, 0, 1).tobytes()
    if sorted(records) != list(range(len(records))):
        raise DataError(f"{folder}: the images' indices should run from 0 without gaps; a file is missing")
    return b"".join(records[index] for index in range(len(records)))


def _confirm_records(records: bytes, folder: Path) -> None:
    size = RECORDS_PER_FILE * (1 + PIXELS)
    for number, file in enumerate(lookup("cifar-10").files):
        where = f"{folder}: the part of the images that makes up {file.name}"
        confirm(records[number * size : (number + 1) * size], file, where, "cifar-10")


def _split(records: bytes) -> tuple[Tensor, Tensor]:
    if len(records) % (1 + PIXELS):
        raise DataError(f"cifar-10's records have {1 + PIXELS} bytes each, and {len(records):,} is no multiple of that")
    table = torch.from_numpy(np.frombuffer(records, np.uint8).reshape(-1, 1 + PIXELS).copy())
    return table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0].long()
