"""A run of one word on one space, whole or spread over ranks, given the same gradients."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holonom import Langevin
from tests.contract.cases import Case, Net

SHAPES = {"up": (6, 3), "mid": (3, 6), "down": (6, 3)}
OPTIONS: dict[str, Any] = {"lr": 0.1, "temperature": 0.01, "seed": 0}
STEPS = 4


def gradients(step: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Gradients that are the same for everyone."""
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def net(case: Case, dtype: torch.dtype = torch.float32) -> Net:
    """Three matrices whose rows do not divide evenly by four."""
    found = Net(case.space)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, shape in SHAPES.items():
            x = torch.linalg.qr(torch.randn(6, 3, generator=generator))[0].contiguous()
            x = x if shape == (6, 3) else x.mT.contiguous()
            if case.space == "sphere-fixed":
                x = x / x.norm(dim=1, keepdim=True)
            setattr(found, name, nn.Parameter(x.to(dtype)))
    return found


def spread(model: nn.Module, mesh: Any, placements: dict[str, Any]) -> None:
    """Replace the parameters by DTensors; None leaves one as it is. ``mesh``: of all, or one for each name."""
    from torch.distributed.tensor import distribute_tensor

    for name, p in list(model.named_parameters()):
        if placements[name] is not None:
            own = mesh[name] if isinstance(mesh, dict) else mesh
            setattr(model, name, nn.Parameter(distribute_tensor(p.detach(), own, placements[name])))


def give(model: nn.Module, found: dict[str, Tensor]) -> None:
    """Set the gradients, each placed as its parameter is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    for name, p in model.named_parameters():
        g = found[name]
        p.grad = distribute_tensor(g, p.device_mesh, p.placements) if isinstance(p, DTensor) else g.clone()


def full(x: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()


def build(case: Case, model: nn.Module, **options: Any) -> Langevin:
    return Langevin(model.named_parameters(), scheme=case.scheme, constraint=case.constraint, **{**OPTIONS, **options})


def train(
    model: nn.Module, opt: Langevin, steps: int = STEPS, start: int = 0, dtype: torch.dtype = torch.float32
) -> None:
    for step in range(start, start + steps):
        give(model, gradients(step, dtype))
        opt.step()


def snapshot(model: nn.Module, opt: Langevin) -> dict[str, Tensor]:
    """Weights, state and what is measured, as whole tensors."""
    opt.state_dict()
    found = {name: full(p) for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        for slot, value in opt.state[p].items():
            if slot not in ("clock", "stream"):
                found[f"{name}.{slot}"] = full(value)
    found["temperature"] = torch.tensor(opt.temperatures(), dtype=torch.float64)
    return found


def run(case: Case, mesh: Any = None, placements: dict[str, Any] | None = None, **options: Any) -> dict[str, Tensor]:
    dtype = options.pop("dtype", torch.float32)
    model = net(case, dtype)
    if placements is not None:
        spread(model, mesh, placements)
    opt = build(case, model, **options)
    train(model, opt, dtype=dtype)
    return snapshot(model, opt)


def placements(world: int) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Meshes and placements by name."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    line = init_device_mesh("cpu", (world,))
    found: dict[str, tuple[Any, dict[str, Any]]] = {
        "rows": (line, {key: [Shard(0)] for key in SHAPES}),
        "columns": (line, {key: [Shard(1)] for key in SHAPES}),
        "replicated": (line, {key: [Replicate()] for key in SHAPES}),
        "mixed": (line, {"up": [Shard(0)], "mid": [Shard(1)], "down": None}),
    }
    if world % 2 == 0 and world > 2:
        square = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("outer", "inner"))
        found |= {
            "hybrid": (square, {key: [Replicate(), Shard(0)] for key in SHAPES}),
            "both": (
                square,
                {"up": [Shard(0), Shard(1)], "mid": [Shard(1), Shard(0)], "down": [Shard(0), Replicate()]},
            ),
            "two meshes": (
                {"up": line, "mid": square, "down": square},
                {"up": [Shard(1)], "mid": [Shard(1), Replicate()], "down": [Replicate(), Shard(0)]},
            ),
        }
    return found


def table(cases: list[Case], names: list[str] | None = None, **options: Any) -> dict[str, dict[str, Tensor]]:
    """On every rank: every case with every placement."""
    import warnings

    found = {}
    for name, (mesh, own) in placements(dist.get_world_size()).items():
        if names is None or name in names:
            for case in cases:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found[f"{case} {name}"] = run(case, mesh, own, **options)
    return found
