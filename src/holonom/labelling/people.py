"""The labels of several people, as the array that :func:`holonom.metrics.agreement` takes."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import DataError
from .journal import CLASSES, SUFFIX, read_head, replay

_IMAGE = "image"  # the heading of the first column


@dataclass(frozen=True)
class People:
    """Names, and ``labels`` of shape (people, images).

    ``unfinished`` are the people who have not labelled every image. ``fingerprint`` identifies the images; it is empty
    for labels read from a table.
    """

    names: tuple[str, ...]
    labels: Tensor
    unfinished: tuple[str, ...] = ()
    fingerprint: str = ""


def read_people(path: Path) -> People:
    """Read a folder of label files, or a table that :func:`write_csv` wrote.

        >>> people = read_people("labels")
        >>> metrics.agreement(model(images).argmax(-1)[None], people.labels)

    Only people who labelled every image are included.
    """
    path = Path(path)
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        return _from_table(path)
    raise DataError(f"there are no labels at {path}: give a folder of label files, or a table of them")


def write_csv(people: People, path: Path) -> None:
    """Write a table: one row per image, one column per person."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([_IMAGE, *people.names])
        writer.writerows([image, *row] for image, row in enumerate(people.labels.T.tolist()))
    os.replace(partial, path)


def _from_folder(folder: Path) -> People:
    files = sorted(folder.glob(f"*{SUFFIX}"))
    heads = [read_head(file) for file in files]
    if not files:
        raise DataError(f"there are no label files (*{SUFFIX}) in {folder}")
    if len({(head["fingerprint"], head["images"]) for head in heads}) > 1:
        raise DataError(
            f"{folder} holds labels of several sets of images; keep the labels of each set in a separate folder"
        )
    names, rows, unfinished = [], [], []
    for file, head in zip(files, heads, strict=True):
        given = replay(file, head["images"])
        if len(given) < head["images"]:
            unfinished.append(head["person"])
            continue
        names.append(head["person"])
        rows.append([given[image] for image in range(head["images"])])
    if not rows:
        raise DataError(f"nobody has labelled all images of {folder} yet: {', '.join(unfinished)} did not finish")
    return People(tuple(names), torch.tensor(rows), tuple(unfinished), heads[0]["fingerprint"])


def _from_table(path: Path) -> People:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            heading, *rows = csv.reader(file)
        if heading[:1] != [_IMAGE] or len(heading) < 2 or not rows:
            raise ValueError(f"the first row must be {_IMAGE} and names, and images must follow")
        numbers = torch.tensor([[int(cell) for cell in row] for row in rows])
        if numbers.shape[1:] != (len(heading),) or numbers[:, 0].tolist() != list(range(len(rows))):
            raise ValueError("rows must be images 0, 1, 2, … with a label of every person")
        if int(numbers[:, 1:].min()) < 0 or int(numbers[:, 1:].max()) >= CLASSES:
            raise ValueError(f"labels run from 0 to {CLASSES - 1}")
    except (ValueError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no table of labels: {error}") from None
    return People(tuple(heading[1:]), numbers[:, 1:].T.contiguous())
