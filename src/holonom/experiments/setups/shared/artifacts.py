"""What several experiments of one run set need, made once and kept beside them under the settings it depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ....files import load, save
from ... import ranks

AGAIN = "delete it to make it anew"


class Kept:
    """Tensors by name, in ``folder/<hash>`` of the identity: everything that their numbers depend on."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        text = json.dumps(identity, indent=2, sort_keys=True, default=str)
        self.folder = folder / hashlib.sha256(text.encode()).hexdigest()[:12]
        if ranks.rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "identity.json").write_text(text + "\n", encoding="utf-8")
        ranks.wait()

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """Made by the first process, read by all; tensors come back on the CPU."""
        if ranks.rank() == 0 and not self._path(name).exists():
            save(make(), self._path(name))
        ranks.wait()
        return load(self._path(name), AGAIN)

    def own(self, name: str, make: Callable[[], Any]) -> Any:
        """Made and read by every process for itself; by all anew if one has none, since they make it together."""
        if not self.has(name):
            save(make(), self._own(name))
        return load(self._own(name), AGAIN)

    def has(self, name: str) -> bool:
        """Whether every process has what :meth:`own` returns."""
        return not ranks.largest(not self._own(name).exists())

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.pt"

    def _own(self, name: str) -> Path:
        return self._path(f"{name}-{ranks.rank()}of{ranks.size()}")
