"""Draws in memory or on disk, and what a run needs to be continued."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from .._files import load, save
from ..errors import CheckpointError

FORMAT = 1
_DTYPES = {torch.float64: np.float64}  # others are kept in single precision


class Store:
    """Tensors (chains, draws, …) by parameter name, filled one draw at a time.

    With a folder they are files that are mapped into memory, ``draws/NAME.npy``, which NumPy can open without this
    library. ``checkpoint.pt`` says how far they are filled; it is written after them, and as a whole or not at all.
    """

    def __init__(self, kinds: dict[str, tuple[torch.Size, torch.dtype]], count: int, chains: int) -> None:
        self.kinds, self.leading = kinds, (chains, count)
        self.maps: list[np.memmap[Any, Any]] = []

    def open(self, folder: Path | None, mode: str) -> None:
        """``mode`` is NumPy's: "w+" anew, "r+" to go on, "c" to read (what is changed stays in memory)."""
        self.draws: dict[str, Tensor] = {}
        for name, (shape, dtype) in self.kinds.items():
            place, kind = f"draws/{quote(name, safe='')}", _DTYPES.get(dtype, np.float32)
            self.draws[name] = self._tensor(folder, place, (*self.leading, *shape), kind, mode)
        self.losses = self._tensor(folder, "losses", self.leading, np.float64, mode)

    def _tensor(self, folder: Path | None, name: str, shape: tuple[int, ...], dtype: Any, mode: str) -> Tensor:
        if folder is None:
            return torch.from_numpy(np.zeros(shape, dtype))
        path = folder / f"{name}.npy"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A file of zeros takes no space on most disks until it is written to.
            array = np.lib.format.open_memmap(path, mode, dtype, shape if mode == "w+" else None)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be opened ({error}); delete {folder} to start over") from None
        if array.shape != shape or array.dtype != dtype:
            raise CheckpointError(f"{path} has shape {array.shape}, not {shape}; delete {folder} to start over")
        self.maps.append(array)
        return torch.from_numpy(array)

    def put(self, number: int, parameters: Mapping[str, Tensor], losses: Tensor) -> None:
        for name, draws in self.draws.items():
            draws[:, number] = parameters[name].detach().to("cpu", draws.dtype)
        self.losses[:, number] = losses.to("cpu", torch.float64)

    def flush(self) -> None:
        for array in self.maps:
            array.flush()


class Folder:
    """Where a run keeps its settings and its checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def settings(self) -> dict[str, Any] | None:
        path = self.path / "run.json"
        if not path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return found
        except ValueError as error:
            raise CheckpointError(f"{path} cannot be read ({error}); delete {self.path} to start over") from None

    def reserve(self, settings: dict[str, Any]) -> None:
        """Write the settings, or refuse a folder that belongs to a run with others."""
        wanted = json.loads(json.dumps(settings))
        found = self.settings()
        if found is None and (self.path / "checkpoint.pt").exists():
            raise CheckpointError(f"{self.path} has a checkpoint but no run.json to tell whose; give another out")
        if found is None:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                partial = self.path / f"run.json.{os.getpid()}"
                partial.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
                os.replace(partial, self.path / "run.json")
            except OSError as error:
                raise CheckpointError(f"out={str(self.path)!r} is no folder that can be written to: {error}") from None
            return
        if wrong := [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]:
            differences = "; ".join(f"{name} {found.get(name)}, not {wanted.get(name)}" for name in wrong)
            raise CheckpointError(
                f"{self.path} holds a run with other settings: {differences}. Call with the same settings to continue "
                f"it, or give another out"
            )

    def checkpoint(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        found: dict[str, Any] = load(path, f"delete {self.path} to start over", device)
        if found.get("format", 0) > FORMAT:
            raise CheckpointError(f"{path} was written by a later version of holonom; upgrade to continue it")
        return found

    def save(self, state: dict[str, Any]) -> None:
        save({"format": FORMAT, **state}, self.path / "checkpoint.pt")


def fingerprint(*tensors: Tensor) -> str:
    """Equal for equal tensors, and hardly ever otherwise."""
    value = 0
    for x in tensors:
        header = f"{tuple(x.shape)} {x.dtype}".encode()
        data: Any = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        value = zlib.crc32(data, zlib.crc32(header, value))
    return f"{value:08x}"
