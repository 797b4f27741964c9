"""What happens to sharded runs besides steps; every function runs on every rank and returns what its test asserts."""

import warnings
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import holonom
from holonom import Langevin
from holonom._sharding import collectives
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from holonom.multirate import MultirateLangevin
from tests.contract.cases import Case

from . import checkpoints, runs

Found = dict[str, Any]


def message(function: Any) -> str:
    """What a call raises, or nothing."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def placed(shape: tuple[int, ...], placement: Any, mesh: Any = None) -> nn.Parameter:
    torch.manual_seed(0)
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    return nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [placement]))


def offloaded(p: nn.Parameter) -> None:
    """As FSDP2 leaves parameters on the CPU whose mesh is a GPU's."""
    with mock.patch.object(type(p.device_mesh), "device_type", "cuda"):
        Langevin([p], 0.1, seed=0)


def interleaved(weight: nn.Parameter, rank: int) -> list[Any]:
    """A group of whole parameters before the sharded one, or behind it."""
    groups = [{"params": [weight]}, {"params": [nn.Parameter(torch.zeros(3))]}]
    return groups[::-1] if rank else groups


def spoilt(weight: nn.Parameter, rank: int, *, first: bool) -> list[Any]:
    """A group of whole parameters that one rank refuses, before the sharded one or behind it."""
    whole = {"params": [nn.Parameter(torch.full((3,), torch.nan if rank else 1.0))], "constraint": Circle(2.0)}
    return [whole, {"params": [weight]}] if first else [{"params": [weight]}, whole]


def refusals() -> Found:
    """Bad input, of which every rank must hear."""
    world, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (world,))
    reverse = DeviceMesh("cpu", list(range(world))[::-1])
    weight, other = placed((6, 4), Shard(0), mesh), placed((3, 4), Shard(0), mesh)
    before = weight.full_tensor()
    partial = nn.Parameter(DTensor.from_local(torch.ones(2, 2), mesh, [Partial()]))
    zero = placed((6, 4), Shard(0), mesh)
    with torch.no_grad():
        if rank == min(world, 3) - 1:  # six rows leave nothing to a fourth rank
            zero.to_local()[-1:] = 0

    def build(params: Any, **options: Any) -> Any:
        return lambda: Langevin(params, 0.1, **{"seed": 0, "temperature": 0.01, **options})

    found = {
        "partial": message(build([partial])),
        "order": message(build([weight, other] if rank else [other, weight])),
        "order of plain groups": message(build(interleaved(weight, rank))),
        "plain weights on one rank": message(build(spoilt(weight, rank, first=True))),
        "plain weights on one rank, behind": message(build(spoilt(weight, rank, first=False))),
        "constraint on one rank": message(build([weight], constraint=Circle(2.0) if rank else Circle(3.0))),
        "bad number on one rank": message(build([weight], friction=-1.0 if rank == 1 else 1.0)),
        "zero row": message(build([zero], constraint=Sphere(1.0, slack=False))),
        "dtensor radius": message(lambda: Circle(distribute_tensor(torch.ones(6, 4), mesh, [Shard(1)]))),
        "descending ranks": message(build([placed((8, 4), Shard(0), reverse)])),
        "copies on descending ranks": message(build([placed((8, 4), Replicate(), reverse)])),
        "no seed": message(build([weight], seed=None)),
        "seeds": message(build([weight], seed=torch.arange(6))),
        "multirate": message(lambda: MultirateLangevin([{"params": [weight], "every": 2}], 0.1, seed=0)),
        "meta": message(build([nn.Parameter(DTensor.from_local(torch.empty(3, 4, device="meta"), mesh, [Shard(0)]))])),
        "offloaded": message(lambda: offloaded(weight)),
        "plain radii of another shape": message(build([weight], constraint=Circle(torch.ones(5, 4)))),
    }
    if world == 4:
        square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        params = [placed((6, 4), Shard(0), mesh), placed((6, 4), Shard(0), square["a"])]
        joint = LevelSet(lambda a, b: a.square().sum() + b.square().sum() - 1, joint=True)
        found["two meshes"] = message(build(params, constraint=joint))
        found |= apart(square)
    found["unchanged"] = torch.equal(weight.full_tensor(), before)
    return found


def apart(square: Any) -> Found:
    """Parameters along the two dimensions of a mesh: what one rank finds must reach the one that is on neither."""
    first, second = placed((6, 4), Shard(0), square["a"]), placed((6, 4), Shard(0), square["b"])
    opt = Langevin([("first", first), ("second", second)], 0.1, seed=0)
    first.grad, second.grad = torch.zeros_like(first.detach()), torch.zeros_like(second.detach())
    if dist.get_rank() == 0:
        second.grad.to_local()[0] = torch.nan
    model = nn.Module()
    model.first, model.second = first, second
    with torch.no_grad():
        if dist.get_rank() == 0:
            first.to_local()[0] = torch.nan
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    return {
        "a step along two dimensions": message(opt.step),
        "constrain along two dimensions": message(lambda: holonom.constrain(sgd, model, {"first": Circle(2.0)})),
    }


def bad_steps() -> Found:
    """Steps that one rank cannot take."""
    rank = dist.get_rank()
    found: Found = {}

    def prepared(constraint: Any = None, shape: tuple[int, ...] = (6, 4)) -> tuple[nn.Parameter, Langevin]:
        p = placed(shape, Shard(0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opt = Langevin([("w", p)], 0.1, seed=0, temperature=0.01, constraint=constraint)
        p.grad = torch.zeros_like(p.detach())
        return p, opt

    p, opt = prepared()
    before = p.full_tensor()
    if rank == 1:
        p.grad.to_local()[0, 0] = torch.nan
    found["nan"] = message(opt.step)
    found["nan changed nothing"] = torch.equal(p.full_tensor(), before) and opt.param_groups[0]["step"] == 0
    p.grad = torch.zeros_like(p.detach())
    found["after nan"] = message(opt.step)

    p, opt = prepared(Sphere(1.0, slack=False))
    with torch.no_grad():
        p.to_local()[:rank] = torch.nan
    found["nan weight"] = message(opt.step)

    p, opt = prepared(Sphere(1.0, slack=False, per="matrix"))
    with torch.no_grad():
        p.to_local()[:rank] = torch.nan
    found["nan weight of a spread sphere"] = message(opt.step)

    p, opt = prepared(Orthogonal(), (4, 4))
    before = p.full_tensor()
    with torch.no_grad():
        p.mul_(torch.nan)
    found["nan weight of an owner"] = [message(opt.step), message(opt.step)]
    with torch.no_grad():
        p.copy_(distribute_tensor(before.detach(), p.device_mesh, p.placements))
    found["after nan weight"] = message(opt.step)
    before = p.full_tensor()
    p.grad = distribute_tensor(1e6 * torch.randn(4, 4), p.device_mesh, p.placements)
    found["no root"] = message(opt.step)
    found["no root changed nothing"] = torch.equal(p.full_tensor(), before)

    found["no root of plain weights"] = plain_without_root()

    p, opt = prepared()
    p.grad = distribute_tensor(torch.zeros(6, 4), p.device_mesh, [Replicate()])
    found["gradient placed otherwise"] = message(opt.step)
    return found | different_steps() | bad_projections()


def plain_without_root() -> list[str]:
    """Of a group without DTensors beside one with them: two steps that one rank cannot project, and one that all can.

    At the last one a gradient is missing on one rank.
    """
    shared, plain = placed((6, 4), Shard(0)), nn.Parameter(torch.eye(4))
    groups = [{"params": [("plain", plain)], "constraint": Orthogonal()}, {"params": [("shared", shared)]}]
    opt, found = Langevin(groups, 0.1, seed=0), []
    shared.grad = torch.zeros_like(shared.detach())
    for size in (1e6, 1e6, 0.1, None):
        own = 1e6 if size == 1e6 and dist.get_rank() else 0.1
        plain.grad = own * torch.randn(4, 4) if size or dist.get_rank() else None
        before = [plain.detach().clone(), shared.full_tensor()]
        found.append(message(opt.step))
        moved = not all(torch.equal(*pair) for pair in zip(before, (plain.detach(), shared.full_tensor()), strict=True))
        found[-1] += " moved" * moved
    return found


def different_steps() -> Found:
    """Steps that ranks would take differently: a gradient is missing on one of them, or a setting is another one."""
    rank, found = dist.get_rank(), Found()
    texts = {"BAOAB-free": "rows", "BACDEDCAB-circle": "rows", "BAOAB-sphere": "columns", "BAOAB-orthogonal": "rows"}
    found["different steps changed nothing"] = True
    for text, placement in texts.items():
        model = runs.net(case := Case(*text.split("-", 1)))
        runs.spread(model, *runs.placements(dist.get_world_size())[placement])
        opt = runs.build(case, model)
        runs.train(model, opt, 1)
        before = runs.snapshot(model, opt)
        if text == "BAOAB-free":
            found |= different_settings(opt, lambda model=model, opt=opt: runs.train(model, opt, 1))
        runs.give(model, runs.gradients(1))
        model.up.grad = None if rank else model.up.grad
        found[f"{text} without a gradient"] = message(opt.step)
        after = runs.snapshot(model, opt)
        found["different steps changed nothing"] &= all(torch.equal(after[key], x) for key, x in before.items())
    return found


def different_settings(opt: Langevin, step: Any) -> Found:
    """Steps of ranks whose settings differ, or that call other methods."""
    rank, found, group = dist.get_rank(), Found(), opt.param_groups[0]
    for name, values in {
        "lr": (0.1, 0.2), "temperature": (torch.tensor(0.01), torch.tensor(0.02)), "scheme": ("BAOAB", "ABO"),
        "maximize": (False, True), "seed": (0, torch.tensor(7)),
    }.items():  # fmt: skip
        before, group[name] = group[name], values[rank > 0]
        found[f"other {name}"] = message(step)
        group[name] = before
    opt.record_temperatures(on=rank == 0)
    found["recorded on one rank"] = message(step)
    opt.record_temperatures(on=False)
    found["synchronize on one rank"] = message(opt.step if rank else opt.synchronize)
    return found


def bad_projections() -> Found:
    """Weights that one rank cannot move to the nearest point."""
    rank, found = dist.get_rank(), Found()
    row, other, matrix = placed((6, 4), Shard(0)), placed((6, 4), Shard(0)), placed((4, 4), Shard(0))
    groups = [
        {"params": [("row", row)], "constraint": Sphere(1.0, slack=False)},
        {"params": [("other", other)], "constraint": Sphere(1.0, slack=False, per="matrix")},
        {"params": [("matrix", matrix)], "constraint": Orthogonal()},
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt = Langevin(groups, 0.1, seed=0)
    with torch.no_grad():
        row.to_local()[:rank] = 0.0
        other.mul_(2.0)
    found["a row that is zero"] = message(opt.project_)
    found["others were projected"] = opt.residuals()[1] < 1e-6
    with torch.no_grad():
        row.to_local()[:rank] = 1.0
        matrix.zero_()
    found["a matrix of zeros"] = message(opt.project_)
    return found


def edits() -> Found:
    """Edits between steps are taken up as those of whole weights are."""
    found: Found = {}
    spaces = {"circle": "BAOAB-circle", "rows": "BAOAB-sphere", "matrix": "BACDEDCAB-sphere-matrix"}
    spaces |= {"orthogonal": "BAOAB-orthogonal"}
    for name, text in spaces.items():
        case = Case(*text.split("-", 1))
        results, positions = [], []
        for spread in (False, True):
            model = runs.net(case)
            if spread:
                runs.spread(model, *runs.placements(dist.get_world_size())["rows"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                opt = runs.build(case, model)
            runs.train(model, opt, 2)
            with torch.no_grad():
                model.up.mul_(0.7)
            runs.train(model, opt, 1, start=2)
            opt.scale_momenta_(0.5)
            runs.give(model, runs.gradients(9))
            opt.synchronize()
            with torch.no_grad():
                model.down.mul_(1.3)
            opt.project_()
            opt.param_groups[0]["lr"] = 0.0  # a step that moves nothing, then an edit
            runs.train(model, opt, 1, start=4)
            with torch.no_grad():
                model.mid.mul_(0.6)
            opt.project_()
            opt.param_groups[0]["lr"] = 0.1
            opt.record_temperatures()
            runs.train(model, opt, 2, start=3)
            positions.append(opt.temperatures("configurational")[0])
            measured = [*opt.residuals(), *opt.cotangencies()]
            opt.check()
            results.append((runs.snapshot(model, opt), measured))
        (whole, _), (ours, measured) = results
        found[name] = max(float((ours[k].double() - whole[k].double()).abs().max()) for k in whole)
        found[f"{name} measured"] = max(measured)
        if name == "circle":
            found[f"{name} temperature of positions"] = abs(positions[1] / positions[0] - 1)
    return found


def traffic() -> Found:
    """What a step sends, by space and placement: calls and bytes by kind."""
    found: Found = {}
    cases = [
        "BAOAB-free",
        "BAOAB-circle",
        "BACDEDCAB-circle",
        "BAOAB-sphere",
        "BAOAB-sphere-matrix",
        "BAOAB-orthogonal",
    ]
    for text in cases:
        case = Case(*text.split("-", 1))
        for name in ("rows", "columns"):
            model = runs.net(case)
            runs.spread(model, *runs.placements(dist.get_world_size())[name])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                opt = runs.build(case, model)
            runs.train(model, opt, 1)
            runs.give(model, runs.gradients(1))
            with collectives.counted() as sent:
                opt.step()
            found[f"{text} {name}"] = dict(sent.calls), dict(sent.bytes)
    return found


def networks() -> Found:
    """FSDP2, hybrid, tensor parallel and mixed with plain parameters, beside one process: the largest difference."""
    world = dist.get_world_size()
    found: Found = {}
    line = init_device_mesh("cpu", (world,))

    def compare(name: str, prepare: Any, dtype: torch.dtype = torch.float32) -> None:
        results = []
        for changes in (None, prepare):
            net = checkpoints.model().to(dtype)
            if changes is not None:
                changes(net)
            matrices = [(n, p) for n, p in net.named_parameters() if p.ndim == 2]
            others = [(n, p) for n, p in net.named_parameters() if p.ndim < 2]
            groups = [{"params": matrices, "constraint": Circle(1.5)}, {"params": others}]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                opt = Langevin(groups, 0.1, temperature=0.01, seed=0)
            for step in range(3):
                opt.zero_grad()
                for part in range(2):  # accumulated gradients
                    generator = torch.Generator().manual_seed(10 * step + part)
                    x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 3, generator=generator)
                    (net(x.to(dtype)) - y).float().square().mean().backward()
                opt.step()
            results.append({n: checkpoints.full(p).float() for n, p in net.named_parameters()})
        found[name] = max(float((results[0][n] - results[1][n]).abs().max()) for n in results[0])

    def sharded(net: Any, mesh: Any = line, **options: Any) -> None:
        for layer in (net[0], net[2], net[4]):
            fully_shard(layer, mesh=mesh, **options)
        fully_shard(net, mesh=mesh, **options)

    compare("fsdp", sharded)
    compare("bf16 weights", sharded, torch.bfloat16)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    compare("mixed precision", lambda net: sharded(net, mp_policy=policy))
    compare("plain beside", lambda net: fully_shard(net[2], mesh=line))
    ways = {"2": ColwiseParallel(), "4": RowwiseParallel()}
    if world == 2:
        compare("tensor parallel", lambda net: parallelize_module(net, line, ways))
    if world == 4:
        square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        compare("hybrid", lambda net: sharded(net, square))

        def both(net: Any) -> None:
            parallelize_module(net, square["inner"], ways)
            fully_shard(net, mesh=square["outer"])

        found["both"] = message(lambda: compare("both", both)) or found["both"]
    return found
