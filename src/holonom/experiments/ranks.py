"""Replicas over processes: under torchrun every rank trains its share, and the results are gathered."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import distributed

from .._sharding.replicas import share as replicas_of

Array = np.ndarray[Any, np.dtype[Any]]


def start() -> None:
    """Join the process group that torchrun describes, if there is one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not distributed.is_initialized():
        distributed.init_process_group("gloo")


def stop() -> None:
    """Leave the process group."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def wait() -> None:
    """A barrier of all processes."""
    if distributed.is_initialized():
        distributed.barrier()


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def size() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def device(name: str | None) -> torch.device:
    """The named device, or the best available one; every local rank takes another GPU."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and size() > 1:
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    return torch.device(name)


def share(replicas: int) -> tuple[int, int]:
    """This rank's first replica and how many it has."""
    if replicas < size():
        raise ValueError(f"{replicas} replicas cannot be split over {size()} processes; start at most {replicas}")
    return replicas_of(replicas, rank(), size())


def mesh() -> Any:
    """The mesh of all processes, over which an ensemble's replicas are split; None for one process."""
    if size() == 1:
        return None
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (size(),))


def largest(value: float) -> float:
    """The maximum over all ranks."""
    return float(max(_all_ranks(value)))


def gather(values: Array, repeats: int = 1) -> Array:
    """(times, local runs) of all ranks side by side; the runs of a grid stay grouped by its values."""
    grids = [np.split(part, repeats, 1) for part in _all_ranks(values)]
    return np.concatenate([grid[g] for g in range(repeats) for grid in grids], 1)


def _all_ranks(value: Any) -> list[Any]:
    if size() == 1:
        return [value]
    parts: list[Any] = [None] * size()
    distributed.all_gather_object(parts, value)
    return parts
