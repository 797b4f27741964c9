"""MNIST and Fashion-MNIST, and the IDX format they come in."""

from __future__ import annotations

import struct

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .images import ImageSet, checked
from .root import Root, read

UNSIGNED_BYTE = 8


def mnist(root: Root = None, *, verify: bool = True) -> ImageSet:
    """60,000 + 10,000 handwritten digits; pixels scaled to [0, 1] have mean 0.1307, standard deviation 0.3081."""
    return _load("mnist", root, verify)


def fashion_mnist(root: Root = None, *, verify: bool = True) -> ImageSet:
    """60,000 + 10,000 articles of clothing; pixels scaled to [0, 1] have mean 0.2860, standard deviation 0.3530."""
    return _load("fashion-mnist", root, verify)


def parse_idx(content: bytes, dimensions: int, where: str) -> Tensor:
    """An IDX array of bytes: two zeros, the type, the number of dimensions, a big-endian size for each, the data."""
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, UNSIGNED_BYTE, dimensions)):
        raise DataError(
            f"{where} is no IDX file of bytes with {dimensions} dimension(s); it starts with {content[:4]!r}"
        )
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    expected = header + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise DataError(f"{where} should have {expected:,} bytes for an array of {shape}, but has {len(content):,}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy())


def _load(name: str, root: Root, verify: bool) -> ImageSet:
    def part(file: str, dimensions: int) -> Tensor:
        return parse_idx(read(name, file, root, verify=verify), dimensions, f"{name}'s {file}")

    images = ImageSet(
        part("train-images-idx3-ubyte", 3),
        part("train-labels-idx1-ubyte", 1).long(),
        part("t10k-images-idx3-ubyte", 3),
        part("t10k-labels-idx1-ubyte", 1).long(),
    )
    return checked(name, images)
