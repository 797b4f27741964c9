"""The images to label: an array in a file, or a folder of pictures."""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]

ARRAY = "images"  # its name in an .npz file
KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


@dataclass(frozen=True)
class Pictures:
    """Encoded pictures in order; ``fingerprint`` identifies the set and does not depend on the machine."""

    contents: tuple[bytes, ...]
    kinds: tuple[str, ...]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.contents)


def load_pictures(path: Path) -> Pictures:
    """Images of an ``.npz`` file, or the .png and .jpg files of a folder, sorted by name.

    The array is named ``images``: (N, height, width) or (N, 1, height, width), bytes from 0 (black) to 255 (white) or
    floats from 0 to 1.
    """
    path = Path(path)
    if path.is_file():
        images = read_array(path)
        found = Pictures(tuple(map(encode, images)), ("image/png",) * len(images), fingerprint(images))
    elif path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in KINDS and file.is_file())
        contents = tuple(file.read_bytes() for file in files)
        digests = b"".join(hashlib.sha256(content).digest() for content in contents)
        kinds = tuple(KINDS[file.suffix.lower()] for file in files)
        found = Pictures(contents, kinds, hashlib.sha256(digests).hexdigest())
    else:
        raise DataError(f"there are no images at {path}: give an .npz file with an array {ARRAY!r}, or a folder")
    if not len(found):
        shown = f" ({', '.join(sorted(KINDS))})" if path.is_dir() else ""
        raise DataError(f"{path} holds no images{shown}")
    return found


def fingerprint(images: Array) -> str:
    """Hash of (N, height, width) bytes: of the pixels, because encoders differ."""
    return hashlib.sha256(repr(images.shape).encode() + images.tobytes()).hexdigest()


def read_array(path: Path) -> Array:
    """(N, height, width) bytes from an ``.npz`` file, see :func:`load_pictures`."""
    try:
        if not zipfile.is_zipfile(path):  # NumPy would take it for a pickle, and say how to load that unsafely
            raise DataError(f"{path} is no .npz file with an array {ARRAY!r}")
        with np.load(path, allow_pickle=False) as file:
            images: Array = file[ARRAY]
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is no .npz file with an array {ARRAY!r}: {error}") from None
    if images.ndim == 4 and images.shape[1] == 1:
        images = images[:, 0]
    if images.ndim != 3 or 0 in images.shape[1:]:
        raise DataError(f"{path}: {ARRAY} must be (N, height, width), got {images.shape}")
    if images.dtype == np.uint8:
        return images
    if not np.issubdtype(images.dtype, np.floating) or not bool(((images >= 0) & (images <= 1)).all()):
        raise DataError(f"{path}: {ARRAY} must be bytes, or floats from 0 to 1, got {images.dtype}")
    scaled: Array = np.rint(255 * images).astype(np.uint8)
    return scaled


def encode(image: Array) -> bytes:
    """A (height, width) array of bytes as a grey PNG."""
    height, width = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)  # each row starts with its filter type: none
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows, 9)), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
