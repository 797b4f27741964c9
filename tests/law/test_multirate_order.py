"""A slow group by itself is Langevin with the slow step, seen every k steps: small drifts arrive where one does."""

import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle, Sphere
from holonom.multirate import MultirateLangevin

LR, CYCLES = 0.02, 6
SPACES = {"free": None, "circle": Circle(0.9), "sphere": Sphere(1.1), "fixed sphere": Sphere(1.0, slack=False)}
WORDS = ["BAOAB", "OBA", "ABO", "OBABO", "BAAOAAB", "BAB", "BACDEDCAB"]


def start(space):
    q = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 4
    if space is not None:
        space.land_(q, "q")
    return torch.nn.Parameter(q)


def loss(q):
    weight = torch.cos(torch.arange(12.0, dtype=torch.float64)).reshape(3, 4)
    return (weight * q).sum() + (q**4).sum()


@pytest.mark.parametrize("drift", [True, False])
@pytest.mark.parametrize("every", [2, 5])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("word", WORDS)
def test_cycles_are_slow_steps(word, space, every, drift):
    options = {
        "scheme": word,
        "friction": 0.7,
        "coupling": 0.1,
        "driving_noise": 0.0,
        "constraint": SPACES[space],
        "weight_decay": 0.1,
    }
    slow, alone = start(SPACES[space]), start(SPACES[space])
    clock = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))  # something that is due at every step
    groups = [{"params": [slow], "every": every}, {"params": [clock], "constraint": None}]
    opt = MultirateLangevin(groups, LR, drift=drift, **options)
    reference = Langevin([alone], every * LR, **options)
    moved = 0
    for _ in range(CYCLES):
        for _ in range(every):
            before = slow.detach().clone()
            with opt.due():
                (loss(slow) + clock.square().sum()).backward()
            opt.step()
            moved += not torch.equal(slow, before)
        reference.zero_grad()
        loss(alone).backward()
        reference.step()
        torch.testing.assert_close(slow, alone, rtol=0, atol=1e-13)
    assert moved == CYCLES * (every if drift else 1)
    momenta = [optimizer.state[q]["momentum"] for optimizer, q in ((opt, slow), (reference, alone))]
    torch.testing.assert_close(*momenta, rtol=0, atol=1e-12)
