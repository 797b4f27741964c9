"""Image sets: images and labels for training and for testing."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..errors import DataError


class ImageSet(NamedTuple):
    """Images as uint8, (N, height, width) if grey and (N, 3, height, width) if coloured; labels as int64 (N,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def checked(name: str, images: ImageSet, classes: int = 10) -> ImageSet:
    """The set itself; raises DataError if its parts do not fit together."""
    train, train_labels, test, test_labels = images
    for part, x, y in (("training", train, train_labels), ("test", test, test_labels)):
        if len(x) != len(y):
            raise DataError(f"{name} has {len(x)} {part} images but {len(y)} labels; the files do not belong together")
        if len(y) == 0 or int(y.max()) >= classes:
            raise DataError(f"{name} needs {part} labels from 0 to {classes - 1}, got {sorted(set(y.tolist()))}")
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{name}'s training images are {tuple(train.shape[1:])}, its test images {tuple(test.shape[1:])}"
        )
    return images
