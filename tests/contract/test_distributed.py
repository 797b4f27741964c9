"""Two processes under DistributedDataParallel, each with different data: noise and weights stay bit-equal."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holonom import Langevin
from tests.sharding import ranks as processes

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


def run_all(cases: list[Case], orders: list[str]) -> dict[str, dict[str, torch.Tensor]]:
    with pytest.raises(ValueError, match=f"no seed.*{RANKS} ranks"):
        Langevin([torch.nn.Parameter(torch.zeros(2))], 0.1, temperature=0.01)
    return {f"{case} {order}": run(case, order, dist.get_rank()) for case in cases for order in orders}


def assert_bit_equal(ranks, case, order):
    first, second = (results[f"{case} {order}"] for results in ranks)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
        assert first[name].isfinite().all()
    assert not torch.equal(first["up"], Net(case.space).up)


@pytest.fixture(scope="module")
def ranks():
    return processes.run(RANKS, run_all, CASES, ORDERS)


def test_two_processes_stay_bit_equal():
    """One case for the default run; the others follow."""
    assert_bit_equal(processes.run(RANKS, run_all, CASES[1:2], ORDERS[1:]), CASES[1], ORDERS[1])


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
