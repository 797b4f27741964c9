"""The cases of test_constrain.py: a space, an update, a placement and a mesh, with the same gradients everywhere."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW

import holonom
from holonom._sharding.collectives import counted
from holonom.constraints import Circle, LevelSet, Orthogonal, Spectral, Sphere
from holonom.constraints.views import View

SHAPES = {"a": (6, 10), "b": (10, 6), "c": (7, 5), "d": (1, 3), "e": (6, 6), "f": (6, 10)}
SPACES = {
    "rows": lambda: Sphere("initial"),
    "columns": lambda: Sphere("initial", per="column"),
    "matrices": lambda: Sphere("initial", per="matrix"),
    "number": lambda: Sphere(0.8, slack=False, per="matrix"),
    "ball": lambda: Sphere(0.7, per="matrix"),
    "row balls": lambda: Sphere(0.4),
    "circle": lambda: Circle(0.2),
    "orthogonal": lambda: Orthogonal(),
    "scaled": lambda: Orthogonal(scale="initial"),
    "spectral": lambda: Spectral(0.5),
    "level": lambda: LevelSet(lambda q: q.square().sum() - 1),
}
BLOCKS = {"heads out": Sphere("initial", view=View(blocks=3), per="block"),
          "heads in": Sphere("initial", view=View(output=1, blocks=2), per="block"),
          "packed": Orthogonal(view=View(blocks=2))}  # fmt: skip


@dataclass(frozen=True)
class Case:
    space: str
    update: str = "tangent"
    placement: str = "rows"
    dtype: str = "float64"
    options: Any = field(default=())
    optimizer: str = "adamw"
    steps: int = 3

    def __str__(self) -> str:
        extra = [f"{k}={v}" for k, v in self.options]
        return " ".join([self.space, self.update, self.placement, self.dtype, *extra, self.optimizer])


class Net(nn.Module):
    def __init__(self, dtype, scale=1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name, shape in SHAPES.items():
            weight = scale * torch.randn(shape, generator=generator, dtype=torch.float64) / shape[0] ** 0.5
            setattr(self, name, nn.Linear(shape[1], shape[0], bias=False))
            getattr(self, name).weight = nn.Parameter(weight.to(dtype))


def mesh_of(shape):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=("x", "y")[: len(shape)])


def spread_(net, placement, mesh):
    """Every weight as a DTensor."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if placement == "fsdp":
        return fully_shard(net, mesh=mesh)
    if placement == "tp+fsdp":
        styles = {"a": ColwiseParallel(), "b": RowwiseParallel(), "e": ColwiseParallel(), "f": RowwiseParallel()}
        return fully_shard(parallelize_module(net, mesh["y"], styles), mesh=mesh["x"])
    kinds = {"rows": Shard(0), "columns": Shard(1), "copies": Replicate()}
    for number, name in enumerate(SHAPES):
        layer, words = getattr(net, name), placement.split("+")
        if placement == "mixed":
            words = [["rows"], ["columns"], ["copies"], ["plain"]][number % 4]
        if words != ["plain"]:
            own = [kinds[word] for word in words]
            layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, own))
    return net


def whole(x):
    return x.full_tensor().clone() if hasattr(x, "full_tensor") else x.detach().clone()


def gradients_(net, step, scale=1.0):
    from holonom._sharding.shards import is_sharded, piece_of

    generator = torch.Generator().manual_seed(100 + step)
    for p in net.parameters():
        full = scale * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
        p.grad = piece_of(p).spread(piece_of(p).narrow(full).clone()) if is_sharded(p) else full


def build(case, mesh=None, scale=1.0):
    net = Net(getattr(torch, case.dtype), scale)
    names = list(SHAPES)
    if case.space in BLOCKS:
        names = [name for name in names if name in ("a", "e", "f")]
    space = BLOCKS[case.space] if case.space in BLOCKS else SPACES[case.space]()
    if mesh is not None:
        net = spread_(net, case.placement, mesh)
    if case.optimizer == "adamw":
        opt = AdamW(net.parameters(), lr=0.05, weight_decay=0.1 if ("decay", "drop") in case.options else 0.0)
    else:
        opt = SGD(net.parameters(), lr=0.05, momentum=0.9)
    rules = [(tuple(f"{name}.weight" for name in names), space)]
    return net, opt, holonom.constrain(opt, net, rules, case.update, **dict(case.options))


def run(case, mesh=None):
    """What a run ends with, and what its last step sent."""
    net, opt, held = build(case, mesh)
    sent = {}
    for step in range(case.steps):
        gradients_(net, step)
        if step == case.steps // 2:  # an edit from outside
            with torch.no_grad():
                net.a.weight.mul_(1.5)
        with counted() as traffic:
            opt.step()
        sent = {kind: (count, traffic.bytes[kind]) for kind, count in traffic.calls.items()}
    found = {name: whole(p) for name, p in net.named_parameters()}
    state = {
        k: {n: whole(x) for n, x in own.items() if torch.is_tensor(x)} for k, own in held.state_dict()["held"].items()
    }
    angles = held.angles() if case.update != "plain" or ("track", True) in case.options else {}
    momenta = [whole(s[k]) for s in opt.state.values() for k in ("exp_avg", "momentum_buffer") if k in s]
    residuals = list(held.residuals().values())
    held.check()
    with torch.no_grad():
        net.a.weight.add_(0.1)
    held.project_()
    found["projected"] = whole(net.a.weight)
    return {"weights": found, "state": state, "angles": [tuple(a) for a in angles.values()], "momenta": momenta,
            "residuals": residuals, "sent": sent}  # fmt: skip


def run_all(cases):
    import warnings

    meshes = {}
    found = []
    warnings.simplefilter("ignore")
    for case, shape in cases:
        if shape not in meshes:
            meshes[shape] = mesh_of(shape)
        found.append(run(case, meshes[shape]))
    return found


def run_apart(cases):
    """The same where no process group has all ranks of two dimensions of a mesh, as in a larger world."""
    from holonom._constrain import cuts
    from holonom._sharding import shards

    def apart(mesh, dims):
        return tuple(mesh.get_group(m) for m in dims if mesh.size(m) > 1)

    cuts.groups_of = shards.groups_of = apart
    return run_all(cases)
