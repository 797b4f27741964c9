"""Compiled steps that go straight to their program: as long as nothing but gradients and numbers changed."""

import gc
import weakref

import pytest
import torch
from torch import nn

from holonom import Langevin
from holonom.constraints import Circle, Sphere
from holonom.straight import Straight

SPACES = {"free": None, "circle": Circle(1.5), "sphere": Sphere(9.0)}


@pytest.fixture(autouse=True, params=["cpu", "cuda"])
def device(request, monkeypatch):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    monkeypatch.setattr(Pair, "device", request.param)


@pytest.fixture
def asked(monkeypatch):
    """The calls that asked the compiler."""
    calls = []
    init = Straight.__init__

    def watched(self, *args):
        init(self, *args)
        asking = self._asking

        def ask(*inputs):
            calls.append(inputs)
            asking(*inputs)

        self._asking = ask

    monkeypatch.setattr(Straight, "__init__", watched)
    return calls


class Pair:
    """The same weights stepped compiled and not."""

    device = "cpu"

    def __init__(self, space, **options):
        generator = torch.Generator().manual_seed(0)
        start = [(torch.rand(shape, generator=generator) - 0.5).to(self.device) for shape in ((6, 10), (7,))]
        self.params = [[nn.Parameter(x.clone()) for x in start] for _ in range(2)]
        numbers = {"lr": 0.1, "scheme": "BAOAB", "constraint": SPACES[space], **options}
        self.optimizers = [
            Langevin(params, fuse=fuse, **numbers) for params, fuse in zip(self.params, (True, False), strict=True)
        ]

    def step(self, times=1, gradient=torch.sin):
        for _ in range(times):
            for params, optimizer in zip(self.params, self.optimizers, strict=True):
                for p in params:
                    p.grad = gradient(p.detach())
                optimizer.step()

    def both(self, change):
        for params, optimizer in zip(self.params, self.optimizers, strict=True):
            change(params, optimizer)

    def check(self):
        for ours, theirs in zip(*self.params, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
            states = [opt.state[p] for opt, p in zip(self.optimizers, (ours, theirs), strict=True)]
            torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.1])
@pytest.mark.parametrize("space", SPACES)
def test_after_the_first_two_steps_nobody_is_asked(space, temperature, asked):
    pair = Pair(space, temperature=temperature)
    pair.step(2)  # the first owes no half kick, so it runs letters of its own
    before = len(asked)
    pair.step(6)
    pair.check()
    assert before > 0
    assert len(asked) == before


def test_numbers_may_change(asked):
    pair = Pair("circle")
    pair.step(3)
    before = len(asked)
    pair.both(lambda _, opt: opt.param_groups[0].update(lr=0.03, friction=0.2))
    pair.step(3)
    pair.check()
    assert len(asked) == before


@pytest.mark.parametrize("space", SPACES)
def test_weights_may_move_to_other_memory(space, asked):
    pair = Pair(space)
    pair.step(3)
    before = len(asked)
    old = [p.data for p in pair.params[0]]
    kept = [x.clone() for x in old]

    def move(params, _):
        for p in params:
            p.data = p.data.clone()

    pair.both(move)
    pair.step(3)
    pair.check()
    assert len(asked) > before
    for x, y in zip(old, kept, strict=True):
        assert torch.equal(x, y)


def test_state_may_be_replaced():
    pair = Pair("free")
    pair.step(3)

    def stop(params, opt):
        opt.state[params[0]]["momentum"] = torch.zeros_like(params[0])

    pair.both(stop)
    pair.step(3)
    pair.check()


@pytest.mark.parametrize("space", SPACES)
def test_gradients_may_lie_in_any_order(space):
    pair = Pair(space)
    pair.step(3)
    pair.step(2, lambda x: x.sin().t().contiguous().t() if x.ndim == 2 else x.sin())
    pair.step(2)
    pair.check()


def test_gradients_are_not_kept():
    pair = Pair("circle", temperature=0.1)
    pair.step(4)
    params, opt = pair.params[0], pair.optimizers[0]
    for p in params:
        p.grad = p.detach().cos()
    watched = [weakref.ref(p.grad.untyped_storage()) for p in params]
    opt.step()
    opt.zero_grad()
    gc.collect()
    assert all(ref() is None for ref in watched)


def test_autograd_notices_the_steps():
    pair = Pair("circle")
    pair.step(4)
    p, opt = pair.params[0][0], pair.optimizers[0]
    loss = p.square().sum()
    for q in pair.params[0]:
        q.grad = torch.ones_like(q)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_mode_and_back():
    pair = Pair("free")
    with torch.inference_mode():
        pair.step(3)
    pair.step(3)
    pair.check()


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("space", SPACES)
def test_a_step_that_is_to_be_skipped_leaves_everything_as_it_is(space, fuse):
    pair = Pair(space)
    params, opt = pair.params[not fuse], pair.optimizers[not fuse]
    pair.step(2)
    (cell,) = opt._all_cells()[0]
    opt.guard_gradients = False  # it would say for itself what to skip
    for skip in (True, False, True):
        cell.skip = torch.tensor(skip, device=pair.device)
        for p in params:
            p.grad = torch.full_like(p, float("nan")) if skip else p.detach().sin()
        before = [x.clone() for p in params for x in (p.detach(), *opt.state[p].values())]
        opt.step()
        after = [x for p in params for x in (p.detach(), *opt.state[p].values())]
        same = [torch.equal(x, y) for x, y in zip(before, after, strict=True)]
        assert all(same) if skip else not all(same)
