"""Multirate training under DistributedDataParallel.

On fast steps slow parameters take part in no graph, so the wrapper must look for unused parameters:

    model = DistributedDataParallel(net, find_unused_parameters=True)
    model.register_comm_hook(None, holonom.multirate.reduce_due)      # send only what is due

That is all: the clock is the same on every rank, so all ranks freeze the same parameters. Without the
hook the result is the same, but fast steps send the slow part's zeros. ``static_graph=True`` would be
wrong, because the graph changes from step to step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def reduce_due(process_group: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    """Average a bucket over the ranks if it holds a gradient that is due; otherwise send nothing.

    Inside ``due()`` that is what ``requires_grad`` says, alike on every rank.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    if any(p.requires_grad for p in bucket.parameters()):
        return allreduce_hook(process_group, bucket)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
