"""Tensors on disk: written as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from .errors import CheckpointError


def save(content: Any, path: Path) -> None:
    """A process that is killed while writing leaves the file as it was; two that write it do not mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    torch.save(content, partial)
    os.replace(partial, path)


def load(path: Path, otherwise: str, device: torch.device | str = "cpu") -> Any:
    """What :func:`save` wrote; ``otherwise`` says what to do about a file that cannot be read."""
    try:
        return torch.load(path, weights_only=True, map_location=device)
    except Exception as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]  # torch goes on to advise a load that runs code
        raise CheckpointError(f"{path} cannot be read ({reason}); {otherwise}") from None
