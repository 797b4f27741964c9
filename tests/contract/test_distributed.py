"""Two processes under DistributedDataParallel, each with different data: noise and weights stay bit-equal."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from holonom import Langevin

from .cases import Case, Net, snapshot

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs torch with gloo")

distributed = pytest.mark.distributed

CASES = [Case("BAOAB", "free"), Case("BACDEDCAB", "circle"), Case("OBA", "sphere"), Case("L", "orthogonal")]
ORDERS = ["model first", "optimizer first"]
RANKS = 2


def run(case: Case, order: str, rank: int) -> dict[str, torch.Tensor]:
    """Ranks start with different weights; DistributedDataParallel copies those of rank 0 in place."""
    net = Net(case.space, init=rank)
    if order == "model first":
        wrapped = DistributedDataParallel(net)
    opt = Langevin(
        net.named_parameters(), 0.1, scheme=case.scheme, temperature=0.01, constraint=case.constraint, seed=0
    )
    if order == "optimizer first":
        wrapped = DistributedDataParallel(net)
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(5):
        opt.zero_grad()
        x, y = torch.randn(8, 3, generator=generator), torch.randn(8, 4, generator=generator)
        (wrapped(x) - y).square().mean().backward()
        opt.step()
    return snapshot(net, opt)


def worker(rank: int, folder: str, cases: list[Case], orders: list[str]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    with pytest.raises(ValueError, match=f"no seed.*{RANKS} ranks"):
        Langevin([torch.nn.Parameter(torch.zeros(2))], 0.1, temperature=0.01)
    results = {f"{case} {order}": run(case, order, rank) for case in cases for order in orders}
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def run_on_ranks(folder: Path, cases: list[Case], orders: list[str]) -> list[dict[str, dict[str, torch.Tensor]]]:
    mp.spawn(worker, args=(str(folder), cases, orders), nprocs=RANKS)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


def assert_bit_equal(ranks, case, order):
    first, second = (results[f"{case} {order}"] for results in ranks)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
        assert first[name].isfinite().all()
    assert not torch.equal(first["up"], Net(case.space).up)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_on_ranks(tmp_path_factory.mktemp("ranks"), CASES, ORDERS)


def test_two_processes_stay_bit_equal(tmp_path):
    """One case for the default run; the others follow."""
    assert_bit_equal(run_on_ranks(tmp_path, CASES[1:2], ORDERS[1:]), CASES[1], ORDERS[1])


@distributed
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_stay_bit_equal(ranks, case, order):
    assert_bit_equal(ranks, case, order)


@distributed
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_order_of_wrapping_and_building_does_not_matter(ranks, case):
    for results in ranks:
        for name, value in results[f"{case} {ORDERS[0]}"].items():
            torch.testing.assert_close(results[f"{case} {ORDERS[1]}"][name], value, rtol=1e-6, atol=1e-6)
