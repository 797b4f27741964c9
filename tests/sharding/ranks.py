"""Runs a function in several processes that form a gloo world, and returns what each of them found."""

import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = timedelta(seconds=60)


def _worker(rank: int, world: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world, timeout=TIMEOUT
    )
    try:
        torch.save(function(*args), f"{folder}/rank{rank}.pt")
    finally:
        dist.destroy_process_group()
    leave()


def leave() -> NoReturn:
    """End a process whose work is done without the interpreter's shutdown.

    A thread of gloo's that still holds a Python tensor aborts the process if it drops that tensor during shutdown.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """``function(*args)`` on every rank of a world of so many processes; the results, in the order of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_worker, args=(world, folder, function, args), nprocs=world)
        return [torch.load(Path(folder) / f"rank{rank}.pt", weights_only=False) for rank in range(world)]
