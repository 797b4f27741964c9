"""Finds, reads and checks registered files in the data folders."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import NamedTuple

from ..errors import DataError
from .registry import SETS, File, lookup, owner

Root = str | os.PathLike[str] | None


def roots(root: Root = None) -> list[Path]:
    """The folders searched, in order: the argument, $HOLONOM_DATA, the user's cache."""
    named = [root, os.environ.get("HOLONOM_DATA")]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holonom"
    return [Path(place).expanduser() for place in named if place] + [cache]


def find(name: str, file: str, root: Root = None) -> Path:
    """The path of a set's file, plain or compressed, in the first root that has it."""
    dataset = lookup(name)
    registered = dataset.file(file)
    folders = [place / dataset.folder for place in roots(root)]
    for folder in folders:
        for path in variants(folder, registered):
            if path.is_file():
                return path
    raise DataError(
        f"{name} is not here: found no {registered.name} (nor .gz) in {', '.join(map(str, folders))}. "
        f"Put {', '.join(f.name for f in dataset.files)} (plain or .gz) into one of these folders, "
        f"point HOLONOM_DATA at the folder that holds {dataset.folder}/, or run: holonom data get {name}"
    )


def variants(folder: Path, file: File) -> tuple[Path, Path]:
    """The names a file may have in its folder, the preferred one first."""
    return folder / file.name, folder / f"{file.name}.gz"


def read(name: str, file: str, root: Root = None, *, verify: bool = True) -> bytes:
    """A file's uncompressed content; its checksum is checked unless ``verify`` is False."""
    path = find(name, file, root)
    content = unpack(path)
    if verify:
        confirm(content, lookup(name).file(file), path, name)
    return content


def read_text(name: str, file: str, root: Root = None, *, verify: bool = True) -> str:
    """A file's text, which must not be empty; arguments as for :func:`read`."""
    content = read(name, file, root, verify=verify)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}'s {file} is not UTF-8 text: {error}") from error
    if not text.strip():
        raise DataError(f"{name}'s {file} is empty")
    return text


def unpack(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in .gz."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or unreadable: {error}; replace the file") from error


def confirm(content: bytes, file: File, where: object, name: str) -> None:
    """Raise DataError unless the content has the registered checksum."""
    digest = hashlib.sha256(content).hexdigest()
    if digest == file.sha256:
        return
    other = owner(digest)
    what = f"it holds {other}" if other else f"its sha256 is {digest[:12]}…, published is {file.sha256[:12]}…"
    raise DataError(
        f"{where} is not {name}'s {file.name}: {what}. Delete it and run: holonom data get {name}; "
        "to read it as it is, pass verify=False"
    )


class FileStatus(NamedTuple):
    """One file of a set: its path, and what is wrong with it; an empty problem means intact."""

    file: str
    path: Path | None
    problem: str


class SetStatus(NamedTuple):
    """A set and how many of its files are present; their content is not checked."""

    name: str
    title: str
    source: str
    files: int
    present: int
    folder: Path | None


def check(name: str, root: Root = None) -> list[FileStatus]:
    """Read every file of a set and compare it with what was published."""
    return [_status(name, file, root) for file in lookup(name).files]


def list_sets(root: Root = None) -> list[SetStatus]:
    """Every registered set, and how many of its files are present."""
    rows = []
    for dataset in SETS.values():
        paths = [path for file in dataset.files if (path := _locate(dataset.name, file, root))]
        folder = paths[0].parent if paths else None
        rows.append(SetStatus(dataset.name, dataset.title, dataset.source, len(dataset.files), len(paths), folder))
    return rows


def _locate(name: str, file: File, root: Root) -> Path | None:
    try:
        return find(name, file.name, root)
    except DataError:
        return None


def _status(name: str, file: File, root: Root) -> FileStatus:
    path = _locate(name, file, root)
    try:
        read(name, file.name, root)
    except DataError as error:
        return FileStatus(file.name, path, str(error))
    return FileStatus(file.name, path, "")
