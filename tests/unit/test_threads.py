"""Two optimizers in two threads draw what each would draw alone."""

from threading import Barrier, Thread

import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal

STEPS = 40


def train(seed, space, together=None):
    generator = torch.Generator().manual_seed(seed)
    p = torch.nn.Parameter(torch.linalg.qr(torch.randn(300, 40, generator=generator)).Q.contiguous())
    opt = Langevin([p], 0.05, temperature=0.3, seed=seed, constraint=space)
    for _ in range(STEPS):
        p.grad = torch.sin(p.detach())
        if together is not None:
            together.wait()
        opt.step()
    return p.detach()


@pytest.mark.parametrize("space", [None, Circle(2.0), Orthogonal()], ids=["free", "circle", "orthogonal"])
def test_threads_do_not_share_their_noise(space):
    alone = [train(seed, space) for seed in range(2)]
    found, together = {}, Barrier(2, timeout=60)

    def work(seed):
        found[seed] = train(seed, space, together)

    threads = [Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(2):
        assert torch.equal(found[seed], alone[seed])
