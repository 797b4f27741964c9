"""What ranks refuse together, and ensembles over ranks: functions that run on every rank of test_constrain.py."""

import warnings

import torch
import torch.distributed as dist
from torch import nn

import holonom
from holonom._sharding.collectives import counted
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from holonom.errors import ConstraintError, EnsembleError, PartitionError

from .held import mesh_of


class Small(nn.Module):
    def __init__(self, mesh, placements, rank):
        super().__init__()
        from torch.distributed.tensor import distribute_tensor

        generator = torch.Generator().manual_seed(0)
        self.a, self.b = (nn.Linear(4, 6, bias=False) for _ in range(2))
        for layer in (self.a, self.b):
            layer.weight = nn.Parameter(distribute_tensor(torch.randn(6, 4, generator=generator), mesh, placements))
        self.rank = rank


def refused(spoil, rules=None, placements=None):
    """What every rank says to a model that is spoilt on one rank, and whether weights or hooks were left behind."""
    from torch.distributed.tensor import Shard

    mesh, rank = mesh_of((2,)), dist.get_rank()
    model = Small(mesh, placements or [Shard(0)], rank)
    own = spoil(model)
    if own is None:
        own = rules or {"a.weight": Sphere("initial"), "b.weight": Orthogonal()}
    options = own.pop("options", {})
    opt = torch.optim.SGD(model.parameters(), 0.1)
    before = [p.to_local().clone() for p in model.parameters()]
    try:
        holonom.constrain(opt, model, own, **options)
    except Exception as error:
        same = all(torch.equal(p.to_local().nan_to_num(), q.nan_to_num()) for p, q in zip(model.parameters(), before))
        return type(error), str(error), same and not holonom._torch.step_hooks(opt)
    return None


def poison(model):
    if model.rank == 1:
        model.b.weight.to_local().data[0, 0] = torch.nan


def zero(model):
    if model.rank == 0:
        model.a.weight.to_local().data[1] = 0


def other_rules(model):
    return {"a.weight": Circle(1.0 + model.rank)}


def other_update(model):
    return {"a.weight": Circle(1.0), "options": {"update": ("plain", "tangent")[model.rank]}}


def other_momentum(model):
    return {"a.weight": Circle(1.0), "options": {"momentum": ("keep", "project")[model.rank]}}


def unknown_update_on_one(model):
    return {"a.weight": Circle(1.0), "options": {"update": ("plain", "planar")[model.rank]}}


def no_rules_on_one(model):
    return {"a.weight": Circle(1.0)} if model.rank else {}


def no_space_on_one(model):
    return {"a.weight": Circle(1.0) if model.rank else 2.0}


def other_names(model):
    return {("a.weight", "b.weight")[model.rank]: Circle(1.0)}


def unknown_on_one(model):
    return {"c.weight": Circle(1.0)} if model.rank else None


def partial(model):
    from torch.distributed.tensor import DTensor, Partial

    model.a.weight = nn.Parameter(DTensor.from_local(torch.ones(6, 4), model.a.weight.device_mesh, [Partial()]))


def deficient(model):
    model.b.weight.to_local().data.zero_()


REFUSED = {
    "NaN on one rank": (poison, ConstraintError, "'b.weight': the weights hold NaN"),
    "a row of zeros on one rank": (zero, ConstraintError, "1 of 6 blocks are zero"),
    "other rules": (other_rules, ConstraintError, "ranks were given different rules"),
    "another update": (other_update, ConstraintError, "update='plain' on rank 0"),
    "other momenta": (other_momentum, ConstraintError, "momentum='project' on rank 1"),
    "an unknown update on one rank": (unknown_update_on_one, (ConstraintError, ValueError), "update must be 'plain'"),
    "no rules on one rank": (no_rules_on_one, (ConstraintError, PartitionError), "no rules: give at least one"),
    "no space on one rank": (no_space_on_one, (ConstraintError, TypeError), "the rule 'a.weight' holds 2.0"),
    "other parameters": (other_names, ConstraintError, "ranks were given different rules"),
    "a rule without parameters on one rank": (unknown_on_one, (ConstraintError, PartitionError), "claims no parameter"),
    "terms of a sum": (partial, ValueError, "'a.weight' is placed as"),
    "a matrix of lower rank, found by its owner": (deficient, ConstraintError, "rank-deficient"),
}


def level_set_warnings():
    """What is said when level sets are built on shards."""
    from torch.distributed.tensor import Shard

    model = Small(mesh_of((2,)), [Shard(0)], dist.get_rank())
    rules = {("a.weight", "b.weight"): LevelSet(lambda q: q.square().sum() - 1)}
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        holonom.constrain(torch.optim.SGD(model.parameters(), 0.1), model, rules)
    return [str(one.message) for one in given if "needs whole tensors" in str(one.message)]


class Failing(Orthogonal):
    """No step can be projected, on one rank or on all."""

    only_on: int | None = None

    def nearest_(self, x):
        if self.only_on in (None, dist.get_rank()):
            raise holonom.ProjectionError("no root")
        super().nearest_(x)


class FailingOnOne(Failing):
    only_on = 1


def failing_steps():
    """The errors of steps that an owner cannot take, and that the rank which has a matrix cannot take."""
    from torch.distributed.tensor import Shard, distribute_tensor

    found = []
    for rules in ({"a.weight": Failing(), "b.weight": Orthogonal()}, {"stack": FailingOnOne(view="batch")}):
        model = Small(mesh_of((2,)), [Shard(0)], dist.get_rank())
        if "stack" in rules:
            model.stack = nn.Parameter(
                distribute_tensor(torch.eye(4).repeat(2, 1, 1), model.a.weight.device_mesh, [Shard(0)])
            )
        opt = torch.optim.SGD(model.parameters(), 0.1)
        holonom.constrain(opt, model, rules)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        found.append(step_error(opt))
    return found


def edited_weights():
    """The errors of steps after NaN was written into weights: plain ones of one rank, and a matrix of one owner.

    And what a step sends where spheres take a sum and plain matrices may fail.
    """
    from torch.distributed.tensor import Shard

    found = []
    for name in ("stack", "a", "b"):
        model = Small(mesh_of((2,)), [Shard(0)], dist.get_rank())
        model.stack = nn.Parameter(torch.eye(4).repeat(2, 1, 1))  # plain
        opt = torch.optim.SGD(model.parameters(), 0.1)
        space = Sphere("initial", per="matrix") if name == "a" else Orthogonal()
        rules = [(("a.weight", "b.weight"), space), ("stack", Orthogonal(view="batch"))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            holonom.constrain(opt, model, rules, "tangent")
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        with counted() as sent:
            opt.step()
        with torch.no_grad():
            if name == "b":
                model.b.weight.mul_(torch.nan)
            elif dist.get_rank() == 1:
                model.stack[0, 0, 0] = torch.nan
        found.append((sent.calls["all_reduce"], step_error(opt), step_error(opt)))
    return found


def step_error(opt):
    try:
        opt.step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def failing_function():
    """The error of a step whose level set cannot be evaluated by its owner, and whether weights stayed."""
    from torch.distributed.tensor import Shard

    fails = []

    def norm(q):
        if fails:
            raise IndexError("of a user's function")
        return q.square().sum() - 1

    model = Small(mesh_of((2,)), [Shard(0)], dist.get_rank())
    opt = torch.optim.SGD(model.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        holonom.constrain(opt, model, {"a.weight": LevelSet(norm)})
    before = model.a.weight.full_tensor()
    model.a.weight.grad = torch.ones_like(model.a.weight)
    fails.append(True)
    return step_error(opt), torch.equal(model.a.weight.full_tensor(), before)


def refused_ensemble(mesh, replicas, seed):
    try:
        holonom.Ensemble(lambda: nn.Linear(3, 2), replicas, seed=seed, mesh=mesh)
    except (EnsembleError, ValueError) as error:
        return str(error)


def ensembles():
    """An ensemble over ranks: its seeds and weights, gathered; a step; what is refused."""
    mesh = mesh_of((2,))
    ensemble = holonom.Ensemble(lambda: nn.Linear(3, 2), 5, seed=4, repeats=2, mesh=mesh)
    found = {
        "seeds": ensemble.gather(ensemble.seeds),
        "weight": ensemble.gather(ensemble.weight),
        "here": ensemble.replicas,
    }
    temperature = ensemble.share(torch.linspace(0.0, 0.1, 10))
    opt = holonom.Langevin(ensemble.parameters(), 0.1, temperature=temperature, seed=ensemble.seeds)
    ensemble.losses(nn.functional.mse_loss, torch.ones(4, 3), torch.zeros(4, 2)).sum().backward()
    opt.step()
    found["after"] = ensemble.gather(ensemble.weight)
    errors = [refused_ensemble(mesh, *own) for own in ((1, 0), (4, dist.get_rank()), (4, None))]
    return {**found, "errors": errors}
