"""What is expensive to make, on disk: made once and read again by everything with the same identity."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._files import load, save
from . import ranks

REMEDY = "delete it to make it again"


class ArtifactCache:
    """Tensors and plain values by name, in ``folder/<hash of the identity>``; every file is written atomically.

    Args:
        folder: of all artifacts of one sort.
        identity: everything that the artifacts depend on. None: the folder belongs to one identity already.
        remedy: what an error says about a file that cannot be read.
        fresh: ignore what an earlier cache has written.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, Any] | None = None, remedy: str = REMEDY, fresh: bool = False
    ) -> None:
        self.identity = None if identity is None else identity_text(identity)
        self.folder = folder if self.identity is None else folder / _hash(self.identity)
        self.remedy, self.fresh = remedy, fresh
        self._written: set[str] = set()

    def path(self, name: str) -> Path:
        """The artifact's file; characters that a file name cannot have are replaced."""
        return self.folder / f"{''.join(c if c.isalnum() or c in '-+.' else '_' for c in name)}.pt"

    def __contains__(self, name: str) -> bool:
        return self.path(name).exists() and not (self.fresh and name not in self._written)

    def read(self, name: str, default: Any = None) -> Any:
        """What was written under a name, with tensors on the CPU."""
        return load(self.path(name), self.remedy) if name in self else default

    def write(self, name: str, content: Any) -> None:
        if self.identity is not None:
            write_text(self.identity, self.folder / "identity.json")
        save(content, self.path(name))
        self._written.add(name)

    def remove(self, *names: str) -> None:
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """Made by the first rank, read by all. All ranks must call it."""
        if ranks.rank() == 0 and name not in self:
            self.write(name, make())
        ranks.wait()
        return load(self.path(name), self.remedy)

    def per_rank(self, name: str, make: Callable[[], Any]) -> Any:
        """Made and read by every rank for itself. All ranks must call it: if one lacks it, all make it again, since
        making may need them all.
        """
        if not self.has_per_rank(name):
            self.write(_of_rank(name), make())
        return load(self.path(_of_rank(name)), self.remedy)

    def has_per_rank(self, name: str) -> bool:
        """Whether every rank has what :meth:`per_rank` returns. All ranks must call it."""
        return not ranks.largest(_of_rank(name) not in self)


def identity_text(identity: Mapping[str, Any]) -> str:
    """Equal for equal identities, whatever their order."""
    return json.dumps(identity, indent=2, sort_keys=True, default=str) + "\n"


def write_text(text: str, path: Path) -> None:
    """Atomically: several ranks may write it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _hash(text: str) -> str:
    return hashlib.sha256(text.rstrip("\n").encode()).hexdigest()[:12]


def _of_rank(name: str) -> str:
    return f"{name}-{ranks.rank()}of{ranks.size()}"
