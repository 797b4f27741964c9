"""What several experiments of one run set need, made once and kept beside them under the settings it depends on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...errors import CheckpointError
from .. import ranks


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
        if ranks.rank() == 0:
            self._get(name, make)
        ranks.wait()
        return self._read(name)

    def own(self, name: str, make: Callable[[], Any]) -> Any:
        """Made and read by every process for itself."""
        return self._get(f"{name}-{ranks.rank()}of{ranks.size()}", make)

    def _get(self, name: str, make: Callable[[], Any]) -> Any:
        path = self._path(name)
        if not path.exists():
            made = make()
            partial = path.with_suffix(".partial")
            torch.save(made, partial)
            os.replace(partial, path)
        return self._read(name)

    def _read(self, name: str) -> Any:
        path = self._path(name)
        try:
            return torch.load(path, weights_only=True, map_location="cpu")
        except Exception as error:
            raise CheckpointError(f"{path} cannot be read ({error}); delete it to make it anew") from None

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.pt"
