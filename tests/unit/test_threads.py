"""Optimizers in several threads do not disturb each other."""

import sys
from threading import Barrier, Thread

import pytest
import torch

from holonom import Langevin
from holonom._torch import full_precision
from holonom.constraints import Circle, Orthogonal

STEPS, COUNT = 60, 20


@pytest.fixture(autouse=True)
def frequent_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def train(seed, space, start=None):
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randn(20, 8, generator=generator) for _ in range(COUNT)]
    params = [torch.nn.Parameter(torch.linalg.qr(x).Q.contiguous()) for x in draws]
    opt = Langevin(params, 0.05, temperature=0.3, seed=seed, constraint=space)
    if start is not None:
        start.wait()
    for _ in range(STEPS):
        for p in params:
            p.grad = torch.sin(p.detach())
        opt.step()
    return torch.stack([p.detach() for p in params])


def in_two_threads(work):
    threads = [Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("space", [None, Circle(2.0), Orthogonal()], ids=["free", "circle", "orthogonal"])
def test_threads_do_not_share_their_noise(space):
    alone = [train(seed, space) for seed in range(2)]
    found, start = {}, Barrier(2, timeout=60)

    def work(seed):
        found[seed] = train(seed, space, start)

    in_two_threads(work)
    for seed in range(2):
        assert torch.equal(found[seed], alone[seed])


def test_threads_restore_the_precision_of_products():
    """It is a setting of the process: the last thread to leave restores it, and no product runs without it."""
    start, seen = Barrier(2, timeout=60), set()

    def precision():
        if hasattr(torch.backends.mkldnn.matmul, "fp32_precision"):
            return torch.backends.mkldnn.matmul.fp32_precision
        return torch.get_float32_matmul_precision()

    def work(seed):
        start.wait()
        for _ in range(500):
            with full_precision():
                seen.add(precision())

    torch.set_float32_matmul_precision("medium")
    try:
        before = precision()
        in_two_threads(work)
        assert precision() == before
        assert len(seen) == 1
        assert before not in seen
    finally:
        torch.set_float32_matmul_precision("highest")
