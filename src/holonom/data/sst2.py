"""SST-2: phrases from film reviews, good or bad."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import DataError
from .root import Root, read_text


class Sentences(NamedTuple):
    """Phrases, and labels as int64: 0 negative, 1 positive."""

    train: list[str]
    train_labels: Tensor
    dev: list[str]
    dev_labels: Tensor


def sst2(root: Root = None, *, verify: bool = True) -> Sentences:
    """67,349 phrases to train on and 872 to test on, as in GLUE; GLUE's test labels are not public."""
    return Sentences(*_rows(root, "train.tsv", verify), *_rows(root, "dev.tsv", verify))


def _rows(root: Root, file: str, verify: bool) -> tuple[list[str], Tensor]:
    lines = read_text("sst-2", file, root, verify=verify).removesuffix("\n").split("\n")
    if lines[0] != "sentence\tlabel" or len(lines) < 2:
        raise DataError(f"sst-2's {file} should start with the columns sentence and label and hold rows")
    rows = [line.split("\t") for line in lines[1:]]
    for number, row in enumerate(rows, 2):
        if len(row) != 2 or row[1] not in ("0", "1"):
            raise DataError(f"sst-2's {file}, line {number} should be a phrase, a tab and 0 or 1, not {row!r}")
    return [row[0].strip() for row in rows], torch.tensor([int(row[1]) for row in rows])
