"""Multirate optimizers on a GPU: no waiting on fast steps, half precision with a scaler, real costs in a plan."""

import pytest
import torch
from torch import nn

from holonom.multirate import Composite, Multirate, MultirateLangevin, RandomSubsets, plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
EVERY = 4


def net():
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(2) for m in (nn.Linear(64, 64), nn.ReLU())), nn.Linear(64, 10)).cuda()


def build(kind, **options):
    model = net()
    groups = [{"params": model[-1].parameters()}, {"params": model[:-1].parameters(), "every": EVERY}]
    return model, kind(groups, 0.1, **options)


def batch(seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(32, 64, generator=generator, device="cuda")
    return x, x[:, :10].argmax(1)


@pytest.mark.parametrize("kind", [Multirate, MultirateLangevin])
def test_a_step_never_waits_for_the_device(kind):
    model, opt = build(kind, **({"temperature": 1e-4} if kind is MultirateLangevin else {}))
    for seed in range(2 * EVERY):
        x, y = batch(seed)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error" if seed >= EVERY else "default")
        try:
            with opt.due():
                nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert all(p.isfinite().all() for p in model.parameters())


def test_mixed_precision_with_a_scaler():
    model, opt = build(Multirate)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**60, growth_interval=1000)  # the first steps overflow
    losses = []
    for seed in range(200):
        x, y = batch(seed % 3)
        with opt.due():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
    assert opt.param_groups[0]["clock"] < 200
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


@pytest.mark.parametrize("kind", [RandomSubsets, Composite])
def test_regularisers_train(kind):
    model = net()
    opt = kind(model.parameters(), lr=0.1, **({"probability": 0.2} if kind is RandomSubsets else {"every": 3}))
    x, y = batch(0)
    losses = []
    for _ in range(150):
        if kind is RandomSubsets:
            with opt.due():
                nn.functional.cross_entropy(model(x), y).backward()
        else:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        losses.append(nn.functional.cross_entropy(model(x), y).item())
    assert losses[-1] < losses[0] / 2


def test_a_plan_waits_for_the_device():
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)), nn.Linear(2048, 10)).cuda()
    made = plan(model, torch.randn(4096, 2048, device="cuda"), verbose=False)
    assert made.costs[0].backward > 1.5 * made.costs[0].forward  # twice the products
    assert made.costs[-1].backward < made.costs[0].backward / 4
    assert made.speedup("8", 5) > 1.5
