"""A sharded run that saves every second step and goes on from its last checkpoint: a rank, by torchrun or by itself.

With a third argument, rank 1 is killed in the middle of that step, the first time it comes there.
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from holonom._sharding import collectives
from tests.sharding import checkpoints
from tests.sharding.ranks import leave

STEPS, EVERY = 8, 2


def parts(net, opt):
    return {"model": get_model_state_dict(net), "opt": get_optimizer_state_dict(net, opt)}


def last_checkpoint(folder: Path) -> int:
    """The number of the last step whose checkpoint is complete: its metadata are written last."""
    return max((int(path.parent.name) for path in folder.glob("*/.metadata")), default=0)


def die_in(step: int, folder: Path) -> None:
    """Kill this process in the middle of a step, once."""
    mark, send = folder / "killed", collectives.reduced

    def reduced(*args, **kwargs):
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return send(*args, **kwargs)

    import holonom._sharding.ranks as module

    module.reduced = reduced


def main(folder: Path, space: str, killed_at: int | None) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    torch.set_num_threads(1)
    net, opt = checkpoints.build(space)
    start = last_checkpoint(folder)
    if start:
        found = parts(net, opt)
        dcp.load(found, checkpoint_id=str(folder / str(start)))
        set_model_state_dict(net, found["model"])
        set_optimizer_state_dict(net, opt, found["opt"])
    for step in range(start, STEPS):
        if step == killed_at and dist.get_rank() == 1:
            die_in(step, folder)
        checkpoints.train(net, opt, step, 1)
        if (step + 1) % EVERY == 0:
            dcp.save(parts(net, opt), checkpoint_id=str(folder / str(step + 1)))
    found = checkpoints.snapshot(net, opt)
    if dist.get_rank() == 0:
        torch.save({"end": found, "started at": start}, folder / "end.pt")
    dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
