"""Two processes under DistributedDataParallel: ranks stay bit-equal, and equal to one process with all the data."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holonom.multirate import Multirate, MultirateLangevin, RandomSubsets, distributed, reduce_due
from tests.sharding import ranks as processes

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs torch with gloo")

in_two_processes = pytest.mark.distributed

RANKS, STEPS, EVERY = 2, 7, 3
KINDS = ["sgd", "no drift", "langevin", "subsets"]
HOOKS = [False, True]


def net(init=0):
    torch.manual_seed(init)
    return nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 6), nn.Tanh(), nn.Linear(6, 2))


def build(kind, model):
    if kind == "subsets":
        return RandomSubsets(model.parameters(), 0.05, steps_off=EVERY, seed=0)
    groups = [{"params": list(model[4].parameters())}, {"params": list(model[:4].parameters()), "every": EVERY}]
    if kind == "langevin":
        return MultirateLangevin(groups, 0.1, temperature=1e-3, seed=0)
    return Multirate(groups, 0.05, drift=kind == "sgd")


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)


def train(kind, ranks, model, wrapped, blocks=1):
    opt = build(kind, model)
    for step in range(STEPS):
        for block in range(blocks):
            with opt.due():
                pairs = [batch(step + 50 * block, rank) for rank in ranks]
                x, y = (torch.cat(part) for part in zip(*pairs, strict=True))
                (wrapped(x) - y).square().mean().backward()
        opt.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def run(kind, hook, blocks, rank, **options):
    """Small buckets, so that head and body do not share theirs."""
    model = net(init=rank)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=1e-4, **options)
    sent = []

    def counted(group, bucket):
        sent.append(any(p.requires_grad for p in bucket.parameters()))
        return reduce_due(group, bucket)

    if hook:
        wrapped.register_comm_hook(None, counted)
    weights = train(kind, [rank], model, wrapped, blocks)
    return {**weights, "sent": torch.tensor(sent, dtype=torch.bool)}


def run_all():
    results = {f"{kind} {hook} 1": run(kind, hook, 1, dist.get_rank()) for kind in KINDS for hook in HOOKS}
    return {**results, "sgd True 2": run("sgd", True, 2, dist.get_rank(), gradient_as_bucket_view=True)}


@pytest.fixture(scope="module")
def ranks():
    return processes.run(RANKS, run_all)


CASES = [(kind, hook, 1) for kind in KINDS for hook in HOOKS] + [("sgd", True, 2)]


@in_two_processes
@pytest.mark.parametrize(("kind", "hook", "blocks"), CASES)
def test_ranks_stay_bit_equal_and_follow_one_process_with_all_data(ranks, kind, hook, blocks):
    first, second = (results[f"{kind} {hook} {blocks}"] for results in ranks)
    model = net()
    alone = train(kind, range(RANKS), model, model, blocks)
    for name, value in alone.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-5, atol=1e-6)


@in_two_processes
def test_fast_steps_send_the_head_s_buckets_alone(ranks):
    for results in ranks:
        sent = results["sgd True 1"]["sent"].reshape(STEPS, -1)
        for step, buckets in enumerate(sent):
            assert buckets.all() if step % EVERY == 0 else 0 < buckets.sum() < len(buckets)


class Bucket:
    def __init__(self, *flags):
        self.params = [nn.Parameter(torch.ones(2), requires_grad=flag) for flag in flags]

    def parameters(self):
        return self.params

    def buffer(self):
        return torch.arange(4.0)


def test_only_buckets_with_something_due_are_sent(monkeypatch):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    monkeypatch.setattr(default_hooks, "allreduce_hook", lambda group, bucket: "sent")
    assert distributed.reduce_due(None, Bucket(False, True)) == "sent"
    assert torch.equal(reduce_due(None, Bucket(False, False)).wait(), torch.arange(4.0))
