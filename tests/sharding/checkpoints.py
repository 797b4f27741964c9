"""Runs that save on some ranks and go on with others, each a function of every rank."""

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from holonom import Langevin
from holonom.constraints import Circle, Constraint, LevelSet, Orthogonal, Sphere

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


def below_six(q: Tensor) -> Tensor:
    return q.square().sum() - 36


SPACES: dict[str, Constraint | None] = {
    "free": None,
    "circle": Circle(1.5),
    "rows": Sphere(2.0),
    "matrix": Sphere("initial", slack=True, factor=1.2, per="matrix"),
    "orthogonal": Orthogonal(),
    "levelset": LevelSet(inequalities=below_six),
}
EXACT = ("free", "circle")


def model() -> nn.Sequential:
    """Five outputs do not divide by the ranks; the biases of the last layer are fewer than the ranks."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def build(space: str, sharded: bool = True, scheme: str = "BAOAB") -> tuple[nn.Module, Langevin]:
    net = model()
    if sharded:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (net[0], net[2], net[4]):
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
    matrices = [(name, p) for name, p in net.named_parameters() if p.ndim == 2]
    others = [(name, p) for name, p in net.named_parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices, "constraint": SPACES[space]}, {"params": others}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return net, Langevin(groups, 0.1, scheme=scheme, temperature=0.01, seed=0)


def train(net: nn.Module, opt: Langevin, start: int, steps: int) -> None:
    """Every rank has the same batch, so that the mean over ranks is what one process has."""
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 3, generator=generator)
        opt.zero_grad()
        (net(x) - y).square().mean().backward()
        opt.step()


def snapshot(net: nn.Module, opt: Langevin) -> dict[str, Tensor]:
    found = {name: full(p) for name, p in net.named_parameters()}
    opt.state_dict()
    for name, p in net.named_parameters():
        found |= {f"{name}.{slot}": full(value) for slot, value in opt.state[p].items() if isinstance(value, Tensor)}
    return found


def full(x: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()


def save(space: str, folder: str) -> dict[str, dict[str, Tensor]]:
    """Three steps, a checkpoint in parts and one of rank 0, two more steps."""
    net, opt = build(space)
    train(net, opt, 0, 3)
    parts = {"model": get_model_state_dict(net), "opt": get_optimizer_state_dict(net, opt)}
    dcp.save(parts, checkpoint_id=f"{folder}/{space}")
    whole = {
        "model": get_model_state_dict(net, options=FULL),
        "opt": get_optimizer_state_dict(net, opt, options=FULL),
    }
    if dist.get_rank() == 0:
        torch.save(whole, Path(folder) / f"{space}.pt")
    found = {"saved": snapshot(net, opt)}
    train(net, opt, 3, 2)
    return {**found, "end": snapshot(net, opt)}


def load(space: str, folder: str) -> dict[str, dict[str, Tensor]]:
    """Load the checkpoint, on any number of ranks, and go on."""
    net, opt = build(space)
    parts = {"model": get_model_state_dict(net), "opt": get_optimizer_state_dict(net, opt)}
    dcp.load(parts, checkpoint_id=f"{folder}/{space}")
    set_model_state_dict(net, parts["model"])
    set_optimizer_state_dict(net, opt, parts["opt"])
    found = {"saved": snapshot(net, opt)}
    train(net, opt, 3, 2)
    return {**found, "end": snapshot(net, opt)}


def load_full(space: str, folder: str) -> dict[str, dict[str, Tensor]]:
    """Load what rank 0 saved."""
    net, opt = build(space)
    whole = torch.load(Path(folder) / f"{space}.pt", weights_only=True)
    set_model_state_dict(net, whole["model"], options=FULL)
    set_optimizer_state_dict(net, opt, whole["opt"], options=FULL)
    found = {"saved": snapshot(net, opt)}
    train(net, opt, 3, 2)
    return {**found, "end": snapshot(net, opt)}


def exchanged(space: str) -> dict[str, float]:
    """A state of rows, loaded where the weight is placed in another way: how far the next step ends from the same."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.linalg.qr(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))[0]

    def made(placement: Any) -> tuple[nn.Parameter, Langevin]:
        p = nn.Parameter(distribute_tensor(whole, mesh, [placement]) if placement else whole.clone())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return p, Langevin([p], 0.1, scheme="BACDEDCAB", temperature=0.01, seed=0, constraint=SPACES[space])

    def step(p: nn.Parameter, opt: Langevin) -> Tensor:
        p.grad = torch.full_like(p.detach(), 0.1)
        opt.step()
        return full(p)

    rows, opt = made(Shard(0))
    opt.record_temperatures()
    step(rows, opt)
    state, weights = copy.deepcopy(opt.state_dict()), full(rows)
    expected, found = step(rows, opt), {}
    recorded = opt.temperatures("configurational")[0]
    for placement in (Shard(0), Shard(1), Replicate(), None):
        p, other = made(placement)
        other.load_state_dict(state)
        with torch.no_grad():
            p.copy_(distribute_tensor(weights, mesh, [placement]) if placement else weights)
        found[str(placement)] = float((step(p, other) - expected).abs().max())
        if SPACES[space] is None or SPACES[space].has_virial:
            found[f"{placement} temperature"] = abs(other.temperatures("configurational")[0] / recorded - 1)
    return found


def alone(space: str) -> dict[str, dict[str, Tensor]]:
    """The same run in one process, without shards."""
    net, opt = build(space, sharded=False)
    train(net, opt, 0, 3)
    found = {"saved": snapshot(net, opt)}
    train(net, opt, 3, 2)
    return {**found, "end": snapshot(net, opt)}
