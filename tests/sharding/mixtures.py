"""Blocks within parameters, and what is sharded beside what is not; every function runs on every rank, or alone."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from holonom import Langevin, Recorder
from holonom.constraints import Constraint, Orthogonal, Sphere
from holonom.constraints.views import View
from holonom.multirate import Multirate, MultirateWrapper

from .runs import full
from .scenarios import message

BLOCKS: dict[str, tuple[Constraint, tuple[int, ...]]] = {
    "heads": (Sphere("initial", view=View(blocks=3), per="head"), (6, 5)),
    "heads of inputs": (Sphere(2.0, view=View(output=1, blocks=2), per="block"), (5, 8)),
    "packed": (Orthogonal(view=View(blocks=2)), (12, 4)),
    "stack": (Orthogonal(view="batch"), (5, 4, 3)),
    "stack of spheres": (Sphere(2.0, view="batch", per="matrix"), (5, 4, 3)),
}


def blocks() -> dict[str, Tensor]:
    """Every space on every placement, where there are ranks; the weights after two steps."""
    found = {}
    for name, (space, shape) in BLOCKS.items():
        generator = torch.Generator().manual_seed(4)
        start, *gradients = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
        for number, placed in enumerate(placements(len(shape))):
            p = nn.Parameter(placed(start))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                opt = Langevin([p], 0.05, scheme="BACDEDCAB", temperature=0.01, seed=0, constraint=space)
            for g in gradients:
                p.grad = placed(g)
                opt.step()
            found[f"{name} {number}"] = full(p)
    return found


def placements(ndim: int) -> list[Any]:
    """Functions that place a tensor; as many that leave it as it is in a single process."""
    several = 2 * ndim + 1
    if not dist.is_initialized():
        return [torch.clone] * several
    world = dist.get_world_size()
    line = init_device_mesh("cpu", (world,))
    other = init_device_mesh("cpu", (2, world // 2)) if world > 2 else None
    ways = [(line, [Shard(d)]) for d in range(ndim)] + [(line, [Replicate()])]
    ways += [(other or line, [Shard(d), Shard((d + 1) % ndim)] if other else [Shard(d)]) for d in range(ndim)]
    return [lambda x, mesh=mesh, own=own: distribute_tensor(x.clone(), mesh, own) for mesh, own in ways]


def network(*, spread: bool) -> tuple[nn.Module, nn.Module]:
    """Two layers: one that DistributedDataParallel copies, and one in shards."""
    torch.manual_seed(1)
    first, second = nn.Linear(4, 7, dtype=torch.float64), nn.Linear(7, 3, dtype=torch.float64)
    if not spread:
        return first, second
    fully_shard(second, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return DistributedDataParallel(first), second


def trained(kind: str, *, spread: bool) -> list[Tensor]:
    """The weights of both layers after four steps, and what is recorded; all ranks have the same batches."""
    first, second = network(spread=spread)
    slow: Any = {"params": list(first.parameters()), "constraint": Sphere(3.0, per="matrix")}
    if kind == "langevin":
        opt: Any = Langevin([slow, {"params": list(second.parameters())}], 0.1, temperature=0.01, seed=0)
    elif kind == "multirate":
        opt = Multirate([{"params": list(second.parameters()), "every": 2}, {"params": list(first.parameters())}], 0.1)
    elif kind == "multirate, mixed":
        opt = Multirate([*first.parameters(), *second.parameters()], 0.1)
    else:
        slow = torch.optim.AdamW(second.parameters(), 0.01)
        opt = MultirateWrapper([{"optimizer": slow, "every": 2}, torch.optim.SGD(first.parameters(), 0.1)])
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        x, y = (torch.randn(6, n, generator=generator, dtype=torch.float64) for n in (4, 3))
        opt.zero_grad()
        if kind == "langevin":
            (second(torch.tanh(first(x))) - y).square().mean().backward()
        else:
            with opt.due():
                (second(torch.tanh(first(x))) - y).square().mean().backward()
        opt.step()
    recorder = Recorder()
    recorder(weight=second.weight)
    recorded = torch.from_numpy(recorder.draws("weight"))
    return [recorded, *(full(p) for layer in (first, second) for p in layer.parameters())]


KINDS = ("langevin", "multirate", "multirate, mixed", "multirate of adamw")


def mixtures() -> dict[str, list[Tensor]]:
    warnings.simplefilter("ignore")
    return {kind: trained(kind, spread=dist.is_initialized()) for kind in KINDS}


def uneven() -> dict[str, Any]:
    """On four ranks: sizes that do not divide, and cuts that torch or holonom cannot keep."""
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    line, found = init_device_mesh("cpu", (4,)), {}
    for rows in (5, 6, 7, 10):
        torch.manual_seed(0)
        layer = nn.Sequential(nn.Linear(4, rows, bias=False))
        expected = layer[0].weight.detach().clone()
        parallelize_module(layer, square["inner"], {"0": ColwiseParallel()})
        fully_shard(layer, mesh=square["outer"])
        opt = Langevin(layer.parameters(), 0.1, temperature=0.01, seed=0)
        alone = nn.Parameter(expected.clone())
        other = Langevin([alone], 0.1, temperature=0.01, seed=0)
        for p in (layer[0].weight, alone):
            p.grad = torch.zeros_like(p.detach())
        opt.step()
        other.step()
        found[f"{rows} rows"] = torch.equal(full(layer[0].weight), alone)
    parallel = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    parallelize_module(parallel, line, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    shape = torch.Size((8, 2))
    rows = torch.ones(5 if dist.get_rank() == 0 else 1, 2)
    heap = nn.Parameter(DTensor.from_local(rows, line, [Shard(0)], run_check=False, shape=shape, stride=(2, 1)))
    return {
        **found,
        "tensor parallel forward": message(lambda: parallel(torch.ones(2, 4))),
        "other cuts than torch.chunk's": message(lambda: Langevin([heap], 0.1, seed=0)),
    }
