"""Downloads data sets from their public homes and checks them before they are stored."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from contextlib import nullcontext
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ..errors import DataError
from .registry import File, lookup
from .root import Root, confirm, find, roots, unpack, variants

CHUNK = 1 << 16


def get(name: str, root: Root = None, *, progress: bool = True) -> list[Path]:
    """Download a set's missing or damaged files into a data root; returns the paths of all files.

    The root is the argument, else $HOLONOM_DATA, else the user's cache folder. A file appears under its
    name only when it is complete and its content has the registered checksum.

    Args:
        progress: show a bar, if tqdm is installed.
    """
    dataset = lookup(name)
    folder = roots(root)[0] / dataset.folder
    missing: dict[str, list[File]] = {}
    for file in dataset.files:
        if not _intact(folder, file, name):
            missing.setdefault(file.url, []).append(file)
    for url, files in missing.items():
        _download(url, files, folder, name, progress)
    return [find(name, file.name, root) for file in dataset.files]


def _download(url: str, files: list[File], folder: Path, name: str, progress: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
            _store(_fetch(url, Path(scratch), progress), files, folder, name)
    except (OSError, HTTPException) as error:
        raise DataError(
            f"{url} could not be downloaded to {folder}: {error}. "
            f"Try again, or put {', '.join(file.name for file in files)} there by hand"
        ) from error


def _intact(folder: Path, file: File, name: str) -> bool:
    for path in variants(folder, file):
        if path.is_file():
            try:
                confirm(unpack(path), file, path, name)
            except DataError:
                return False
            return True
    return False


def _fetch(url: str, scratch: Path, progress: bool) -> Path:
    request = urllib.request.Request(url, headers={"User-Agent": "holonom"})
    target = scratch / url.rsplit("/", 1)[-1]
    with urllib.request.urlopen(request, timeout=60) as response, target.open("wb") as out:
        size = int(response.headers.get("Content-Length") or 0)
        with _bar(size, target.name) if progress else nullcontext() as bar:
            while chunk := response.read(CHUNK):
                out.write(chunk)
                if bar is not None:
                    bar.update(len(chunk))
    return target


def _bar(size: int, label: str) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return nullcontext()
    return tqdm(total=size or None, desc=label, unit="B", unit_scale=True)


def _store(fetched: Path, files: list[File], folder: Path, name: str) -> None:
    """Check every downloaded file, then move it to its final name atomically."""
    for file in files:
        part = _extract(fetched, file) if file.member else fetched
        confirm(unpack(part), file, file.url, name)
        plain, compressed = variants(folder, file)
        final, stale = (compressed, plain) if part.suffix == ".gz" else (plain, compressed)
        os.replace(part, final)
        stale.unlink(missing_ok=True)


def _extract(archive: Path, file: File) -> Path:
    part = archive.parent / file.name
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as box, box.open(file.member) as source, part.open("wb") as out:
                shutil.copyfileobj(source, out)
        else:
            with tarfile.open(archive) as tape, part.open("wb") as out:
                stream = tape.extractfile(file.member)
                if stream is None:
                    raise KeyError(f"{file.member} is not a file")
                shutil.copyfileobj(stream, out)
    except (KeyError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{file.url} is damaged or lacks {file.member}: {error}; try again later") from error
    return part
