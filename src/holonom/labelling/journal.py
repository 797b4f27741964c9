"""One person's labels in an append-only file: a kill at any moment loses no acknowledged label.

The first line names the person and the images. Every further line is one key press,

    {"image": 17, "label": 3}    or    {"undo": 17}

written and flushed to disk before it is acknowledged. An incomplete last line was never acknowledged; it is dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

from ..errors import DataError

CLASSES = 10
SUFFIX = ".labels"
_NAME = re.compile(r"\w[\w .'-]{0,39}")
_LONGEST = 240  # bytes of a file name, without the suffix


class Conflict(ValueError):
    """A label for an image that is not the next one: the page that sent it is out of date."""


class Journal:
    """The labels of one person, on disk.

    Args:
        folder: of the label files; made if absent.
        person: a name of up to 40 letters, digits, spaces and . ' - _; upper and lower case are the same person.
        images: how many there are.
        fingerprint: of the images; a file about other images is refused.
    """

    def __init__(self, folder: Path, person: str, images: int, fingerprint: str) -> None:
        self.person = checked_name(person)
        self.images, self.fingerprint = images, fingerprint
        self.order = order(self.person, images)
        self.path = Path(folder) / f"{_stem(self.person)}{SUFFIX}"
        self._lock = Lock()
        if self.path.exists():
            self._check(read_head(self.path))

    @property
    def given(self) -> dict[int, int]:
        """Labels by image, in the order they were given."""
        return replay(self.path, self.images) if self.path.exists() else {}

    def next(self, given: dict[int, int]) -> int | None:
        """The image to label now; None when all are labelled."""
        return next((image for image in self.order if image not in given), None)

    def label(self, image: int, label: int) -> None:
        """Label the image that is next in this person's order; repeating the last request changes nothing."""
        if not _is_below(image, self.images):
            raise ValueError(f"there is no image {image!r}; they are numbered from 0 to {self.images - 1}")
        if not _is_below(label, CLASSES):
            raise ValueError(f"a label is a whole number from 0 to {CLASSES - 1}, got {label!r}")
        with self._lock:
            given = self.given
            if given.get(image) == label:
                return  # a repeated request: the reply to the first one was lost
            if image != self.next(given):
                raise Conflict(f"image {image} is not the one to label now")
            self._append({"image": image, "label": label})

    def undo(self, image: int) -> None:
        """Undo the last label, which must belong to this image; nothing happens if the image has none."""
        if not _is_below(image, self.images):
            raise ValueError(f"there is no image {image!r}; they are numbered from 0 to {self.images - 1}")
        with self._lock:
            given = self.given
            if image not in given:
                return
            if image != next(reversed(given)):
                raise Conflict(f"image {image} is not the one that was labelled last")
            self._append({"undo": image})

    def _create(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = {"person": self.person, "images": self.images, "fingerprint": self.fingerprint, "classes": CLASSES}
        partial = self.path.with_suffix(".partial")
        with open(partial, "wb") as file:
            file.write(_line(head))
            _to_disk(file)
        os.replace(partial, self.path)
        _folder_to_disk(self.path.parent)

    def _append(self, entry: dict[str, Any]) -> None:
        if not self.path.exists():
            self._create()
        with open(self.path, "r+b") as file:
            file.seek(_complete(file.read()))  # overwrites an incomplete last line
            file.truncate()
            file.write(_line(entry))
            _to_disk(file)

    def _check(self, head: dict[str, Any]) -> None:
        if (head["images"], head["fingerprint"]) != (self.images, self.fingerprint):
            raise DataError(
                f"{self.path} holds labels of other images; keep the labels of each set in a separate folder"
            )


def checked_name(person: str) -> str:
    """The normalised name; raises ValueError if it is not allowed."""
    name = unicodedata.normalize("NFC", " ".join(person.split()))
    if not _NAME.fullmatch(name):
        raise ValueError(f"a name has 1 to 40 letters, digits, spaces and . ' - _, got {person[:60]!r}")
    if len(_stem(name)) > _LONGEST:
        raise ValueError(f"{name} is too long for a file name; give a shorter one")
    return name


def _stem(person: str) -> str:
    """The name of the person's file, without suffix."""
    return quote(person.casefold(), safe="")


def order(person: str, images: int) -> list[int]:
    """The order in which this person sees the images; it depends on the name alone."""
    keys = [hashlib.sha256(f"{person.casefold()}/{image}".encode()).digest() for image in range(images)]
    return sorted(range(images), key=keys.__getitem__)


def read_head(path: Path) -> dict[str, Any]:
    """The first line of a label file."""
    head = _entry(path, 1, path.read_bytes().split(b"\n", 1)[0])
    kinds = {"person": str, "images": int, "fingerprint": str, "classes": int}
    if any(not isinstance(head.get(key), kind) for key, kind in kinds.items()):
        raise DataError(f"{path} is no label file: its first line lacks one of {', '.join(kinds)}")
    return head


def replay(path: Path, images: int) -> dict[int, int]:
    """Labels by image, with undone ones removed."""
    content = path.read_bytes()
    lines = content[: _complete(content)].splitlines()
    given: dict[int, int] = {}
    for number, line in enumerate(lines[1:], 2):
        entry = _entry(path, number, line)
        image, label = entry.get("image"), entry.get("label")
        if _is_below(entry.get("undo"), images):
            given.pop(entry["undo"], None)
        elif _is_below(image, images) and _is_below(label, CLASSES):
            given[image] = label  # type: ignore[index,assignment]
        else:
            raise DataError(f"{path} is damaged: line {number} is no label: {line[:80]!r}")
    return given


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise DataError(f"{path} is damaged: line {number} is {line[:80]!r}")
    return entry


def _complete(content: bytes) -> int:
    """Length of the complete lines."""
    return content.rfind(b"\n") + 1


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"


def _is_below(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def _to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _folder_to_disk(folder: Path) -> None:
    """Flush the new file name; systems that cannot open a folder do not need it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
