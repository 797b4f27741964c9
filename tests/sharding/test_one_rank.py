"""A mesh of one rank: the run without a mesh. What a GPU does otherwise, where it can be had on a CPU."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

import holonom
from holonom._constrain.exchange import Exchange
from holonom._sharding.backend import Told, run_part
from holonom._sharding.collectives import counted
from holonom._sharding.shards import local, piece_of
from holonom._step import run
from holonom._step.integrate import Eager
from holonom.constraints import Orthogonal, Sphere
from tests.contract.cases import CASES, Case

from . import alone, runs

pytestmark = [
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs torch with gloo"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ROWS = {key: [Shard(0)] for key in runs.SHAPES}
CAN_FAIL = [case for case in CASES if case.space.startswith(("orthogonal", "levelset"))]


@pytest.fixture
def mesh(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    yield from alone.mesh_of_one("gloo", "cpu", tmp_path)


@pytest.fixture
def cut(mesh, monkeypatch):
    alone.cut_(monkeypatch)
    return mesh


@pytest.fixture
def as_on_a_device():
    """Whether a step must be skipped is a tensor, which later finds join."""
    run.KERNEL_DEVICES.add("cpu")
    yield
    run.KERNEL_DEVICES.discard("cpu")


def assert_same(found, case):
    torch.testing.assert_close(found, runs.run(case), rtol=2e-6, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_run_is_that_without_a_mesh(mesh, case):
    with counted() as sent:
        assert_same(runs.run(case, mesh, ROWS), case)
    assert not sent.calls


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_run_of_one_rank_that_sends_to_itself(cut, case):
    with counted() as sent:
        assert_same(runs.run(case, cut, ROWS), case)
    assert sent.calls["all_reduce"]


@pytest.mark.parametrize("case", CAN_FAIL, ids=str)
def test_a_projection_without_a_root_is_looked_for_as_on_a_device(mesh, as_on_a_device, case):
    assert_same(runs.run(case, mesh, ROWS), case)


def test_a_projection_without_a_root_is_found_as_on_a_device(mesh):
    model = runs.net(case := Case("BAOAB", "orthogonal"))
    runs.spread(model, mesh, ROWS)
    opt = runs.build(case, model)
    runs.give(model, runs.gradients(0))
    (work,), skip = opt._work(), torch.tensor(False)
    backend = work.spread.backend(work.group, work.buckets, False)
    backend.begin(work.buckets, None, 1.0, 0.0, skip)
    assert not backend.lost(skip)
    backend.positions()[0].fill_(torch.nan)
    assert backend.lost(skip)
    backend.parts.clear()  # nothing of the group is here
    assert not backend.lost(skip)


def test_owners_send_matrices_back_without_the_host(cut):
    """Numbers or indices that the host makes are copied to a device at every step."""
    p = distribute_tensor(torch.arange(24.0).reshape(6, 4), cut, [Shard(0)])
    exchange = Exchange([piece_of(p)] * 2, [1.0, 2.0])
    with alone.Calls() as calls:
        wholes = exchange.gather([[local(p)], [2 * local(p)]])
        shards, flags = exchange.scatter({i: own for i, (own,) in wholes.items()}, {1}, local(p))
    assert calls.names.isdisjoint({"lift_fresh", "index_put_", "_local_scalar_dense", "equal"}), calls.names
    torch.testing.assert_close([*shards, *flags], [local(p), 2 * local(p), torch.tensor(0.0), torch.tensor(1.0)])


@pytest.mark.parametrize("space", [Orthogonal(), Sphere("initial", per="matrix")], ids=["orthogonal", "matrices"])
@pytest.mark.parametrize("update", ["plain", "tangent"])
@pytest.mark.parametrize("momentum", ["keep", "project"])
def test_constrain_of_one_rank_that_sends_to_itself(cut, space, update, momentum):
    ends = []
    for spread in (False, True):
        model = nn.Linear(4, 6, bias=False)
        weight = torch.linalg.qr(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))[0]
        model.weight = nn.Parameter(distribute_tensor(weight.clone(), cut, [Shard(0)]) if spread else weight.clone())
        opt = torch.optim.AdamW(model.parameters(), 0.05, weight_decay=0.0)
        held = holonom.constrain(opt, model, {"weight": space}, update, momentum)
        with counted() as sent:
            for number in range(3):
                gradient = torch.sin(weight * 7 + number)
                model.weight.grad = distribute_tensor(gradient, cut, [Shard(0)]) if spread else gradient
                if number == 1:
                    with torch.no_grad(), warnings.catch_warnings():
                        model.weight.mul_(1.2)
                opt.step()
        assert bool(sent.calls) == spread
        assert max(held.residuals().values()) < 1e-5
        ends.append(runs.full(model.weight))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)


def test_an_error_of_a_users_function_is_raised_where_other_ranks_hear_of_it(monkeypatch):
    def fails(*_):
        raise ValueError("halfway")

    monkeypatch.setattr(Eager, "run", fails)
    told = Told(())
    told.run([], lambda *_: [], None)
    with pytest.raises(ValueError, match="halfway"):
        told.end(None)
    assert isinstance(run_part(Eager(), [], lambda *_: [], None), ValueError)
