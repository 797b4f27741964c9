"""Compiled steps that go straight to their program: as long as nothing but gradients and numbers changed."""

import gc
import weakref

import pytest
import torch
from holonom.cell import Cell
from holonom.straight import Straight
from torch import nn

from holonom import Langevin, fuse
from holonom.constraints import Circle, Sphere

RATE = 0.1
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

    def __init__(self, space, shapes=((6, 10), (7,)), dtype=torch.float32, **options):
        generator = torch.Generator().manual_seed(0)
        start = [(torch.rand(shape, generator=generator) - 0.5).to(self.device, dtype) for shape in shapes]
        self.params = [[nn.Parameter(x.clone()) for x in start] for _ in range(2)]
        space = SPACES[space] if isinstance(space, str) else space
        numbers = {"lr": RATE, "scheme": "BAOAB", "constraint": space, **options}
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


@pytest.mark.parametrize("space", ["free", "circle"])
def test_nobody_is_asked_about_many_weights(space, asked, monkeypatch):
    """They share a program whose sizes are inputs."""
    monkeypatch.setattr(fuse, "PACK", 2)
    monkeypatch.setattr(fuse, "SMALLEST", 20)
    pair = Pair(space, shapes=((6, 10), (7, 11), (30,), (9, 4), (5, 6), (3, 10), (7,)))
    pair.step(3)
    before = len(asked)
    pair.step(5)
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


@pytest.mark.parametrize("space", SPACES)
def test_weights_in_one_memory_are_not_compiled(space, asked):
    pair = Pair(space, shapes=((6, 10), (6, 10)))

    def tie(params, _):
        params[1].data = params[0].data

    pair.both(tie)
    pair.step(4)
    if Pair.device == "cpu":  # on a device, which of the two is written last is anybody's guess
        pair.check()
    assert not asked


def test_parts_of_one_buffer_are_compiled(asked):
    pair = Pair("circle")

    def share(params, _):
        whole = torch.cat([p.detach().flatten() for p in params])
        params[0].data, params[1].data = whole[:60].view(6, 10), whole[60:]

    pair.both(share)
    pair.step(4)
    pair.check()
    assert asked


@pytest.mark.parametrize("way", ["the tensor", "its view", "its memory"])
def test_state_may_be_replaced(way):
    pair = Pair("free")
    pair.step(3)

    def stop(params, opt):
        fresh = torch.zeros_like(params[0])
        if way == "the tensor":
            opt.state[params[0]]["momentum"] = fresh
        elif way == "its view":
            old = opt.state[params[0]]["momentum"]
            opt.state[params[0]]["momentum"] = old.view(old.shape[::-1]).mT
        else:
            opt.state[params[0]]["momentum"].data = fresh

    pair.both(stop)
    pair.step(3)
    pair.check()


@pytest.mark.parametrize(
    "rate",
    [
        torch.tensor([0.1, 0.05, 0.2, 0.1, 0.1, 0.1], dtype=torch.float64),
        torch.tensor([0.1, 0.05, 0.2, 0.1, 0.1, 0.1]),
        torch.tensor([0.1]).expand(6),
        RATE,
    ],
    ids=["double", "single", "expanded", "float"],
)
def test_numbers_may_become_others_in_kind(rate):
    pair = Pair("circle", shapes=((6, 10), (6,)), lr=torch.linspace(0.1, 0.2, 6).to(Pair.device))
    pair.step(3)
    pair.both(lambda _, opt: opt.param_groups[0].update(lr=rate if rate is RATE else rate.to(pair.device)))
    pair.step(3)
    pair.check()


@pytest.mark.parametrize("space", [Circle(1.5), Sphere(3.0, slack=False)], ids=["circle", "unit rows"])
@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_a_radius_may_change(space):
    pair = Pair(space, shapes=((6, 10), (7, 3)))
    pair.step(3)
    space.radius /= 2
    pair.both(lambda _, opt: opt.project_())
    pair.step(3)
    pair.check()


@pytest.mark.parametrize("space", SPACES)
def test_gradients_may_lie_in_any_order(space):
    pair = Pair(space)
    pair.step(3)
    pair.step(2, lambda x: x.sin().t().contiguous().t() if x.ndim == 2 else x.sin())
    pair.step(2, lambda x: torch._neg_view(-x.sin()))
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


def storages(pair):
    params, opt = pair.params[0], pair.optimizers[0]
    return [weakref.ref(x.untyped_storage()) for p in params for x in (p, *opt.state[p].values())]


def test_weights_are_not_kept_when_they_moved():
    pair = Pair("circle", temperature=0.1)
    pair.step(3)
    pair.optimizers[0].synchronize()
    pair.step(3)
    left = [weakref.ref(p.untyped_storage()) for p in pair.params[0]]
    for p in pair.params[0]:
        p.data = p.data.clone()
    pair.step(3)
    gc.collect()
    assert all(ref() is None for ref in left)


def test_nothing_is_kept_when_all_is_deleted():
    pair = Pair("circle")
    pair.step(4)
    left = storages(pair)
    del pair
    gc.collect()
    assert all(ref() is None for ref in left)


def test_copies_of_half_precision_weights_are_not_kept(monkeypatch):
    widened = []
    widen = Cell.widened

    def watched(self, phase):
        wide = widen(self, phase)
        widened.extend(weakref.ref(x.untyped_storage()) for x in wide.q)
        return wide

    monkeypatch.setattr(Cell, "widened", watched)
    pair = Pair("circle", dtype=torch.bfloat16)
    pair.step(4)
    gc.collect()
    assert len(widened) == 16
    assert all(ref() is None for ref in widened)


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
