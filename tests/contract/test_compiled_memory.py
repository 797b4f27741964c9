"""Compiled steps and memory: kernels follow weights and state wherever they lie, and keep nothing alive."""

import gc
import weakref

import pytest
import torch
from torch import nn

from holonom import Langevin
from holonom._backends import inductor
from holonom._step.buckets import Bucket
from holonom.constraints import Circle, Sphere, View

SPACES = {"free": None, "circle": Circle(1.5), "sphere": Sphere(9.0)}
SHAPES = ((6, 10), (10,))
long = pytest.mark.long
one_space = pytest.mark.parametrize(
    "space", ["circle", pytest.param("free", marks=long), pytest.param("sphere", marks=long)]
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_cuda)])
def device(request):
    return request.param


def lazily_negated(x):
    found = torch.complex(x, -x.sin()).conj().imag
    assert found.is_neg()
    return found


@pytest.fixture
def kernels(monkeypatch):
    """How often a kernel ran."""
    calls = []
    compiled = inductor.run_compiled

    def run_compiled(*args, **options):
        done = compiled(*args, **options)
        calls.extend([done] * done)
        return done

    monkeypatch.setattr(inductor, "run_compiled", run_compiled)
    return calls


class Pair:
    """The same weights stepped compiled and not."""

    def __init__(self, device, space="circle", dtype=torch.float32, shapes=SHAPES, **options):
        generator = torch.Generator().manual_seed(0)
        start = [(torch.rand(shape, generator=generator) - 0.5).to(device, dtype) for shape in shapes]
        self.device, self.params = device, [[nn.Parameter(x.clone()) for x in start] for _ in range(2)]
        numbers = {"lr": 0.1, "scheme": "OBA", "constraint": SPACES[space], **options}
        self.optimizers = [
            Langevin(own, fuse=fuse, **numbers) for own, fuse in zip(self.params, (True, False), strict=True)
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


@one_space
def test_weights_may_move_to_other_memory(space, device, kernels):
    pair = Pair(device, space)
    pair.step(2)
    old = [p.data for p in pair.params[0]]
    before, count = [x.clone() for x in old], len(inductor._kernels)

    def move(params, _):
        for p in params:
            p.data = p.data.clone()

    pair.both(move)
    pair.step(2)
    pair.check()
    assert len(kernels) == (4 if device == "cpu" else 0)  # a GPU has kernels of its own
    assert len(inductor._kernels) == count
    assert all(map(torch.equal, old, before))


@one_space
def test_weights_that_share_memory_are_not_compiled(space, device, kernels):
    """A kernel for them would compute with values that the other weight has overwritten."""
    pair = Pair(device, space, shapes=((6, 10), (6, 10)))

    def tie(params, _):
        params[1].data = params[0].data

    pair.both(tie)
    pair.step(3)
    if device == "cpu":  # on a device the order of writes is not defined
        pair.check()
    assert not kernels


@pytest.mark.parametrize("start", [0, 1])
def test_parts_of_one_buffer_are_compiled(start, device, kernels):
    """Also where they are not aligned."""
    pair = Pair(device)

    def share(params, _):
        whole = torch.cat([p.detach().flatten() for p in (params[1][:start], *params)])
        params[0].data, params[1].data = whole[start : start + 60].view(6, 10), whole[start + 60 :]

    pair.both(share)
    pair.step(3)
    pair.check()
    assert len(kernels) == (3 if device == "cpu" else 0)


@pytest.mark.parametrize("way", ["the tensor", "its view", "its memory"])
def test_state_may_be_replaced(way, device):
    pair = Pair(device)
    pair.step(2)

    def stop(params, opt):
        fresh, own = torch.zeros_like(params[0]), opt.state[params[0]]
        if way == "the tensor":
            own["momentum"] = fresh
        elif way == "its view":
            own["momentum"] = own["momentum"].view(10, 6).mT
        else:
            own["momentum"].data = fresh

    pair.both(stop)
    pair.step(2)
    pair.check()


@one_space
def test_gradients_may_lie_in_any_order(space, device):
    pair = Pair(device, space)
    pair.step(2)
    pair.step(2, lambda x: x.sin().t().contiguous().t() if x.ndim == 2 else x.sin())
    pair.step(2, lazily_negated)
    pair.step(2)
    pair.check()


@pytest.mark.parametrize("view", [View(output=1), pytest.param("conv", marks=long)], ids=str)
def test_kernels_without_a_view_of_their_rows_are_compiled(view, device, kernels):
    """A channels_last convolution, a transposed one: positions are copied into a kernel's memory and back."""
    start = torch.rand(4, 3, 5, 2, generator=torch.Generator().manual_seed(0)) / 10
    runs = []
    for fuse in (True, False):
        own = [start.clone(memory_format=m).to(device) for m in (torch.contiguous_format, torch.channels_last)]
        params = [nn.Parameter(x) for x in own]
        opt = Langevin(params, 0.1, constraint=Sphere(9.0, view=view), fuse=fuse)
        for _ in range(3):
            for p in params:
                p.grad = torch.sin(7 * p.detach())
            opt.step()
        assert opt.residuals()[0] < 1e-5
        runs.append([p.detach() for p in params] + [opt.state[p]["momentum"] for p in params])
    torch.testing.assert_close(*runs, rtol=1e-5, atol=1e-6)
    assert len(kernels) == 3  # on a GPU, too: its own kernels read rows in place


def test_gradients_are_not_kept_alive(device):
    pair = Pair(device)
    pair.step(2)
    params, opt = pair.params[0], pair.optimizers[0]
    for p in params:
        p.grad = p.detach().cos()
    watched = [weakref.ref(p.grad.untyped_storage()) for p in params]
    opt.step()
    opt.zero_grad()
    gc.collect()
    assert all(ref() is None for ref in watched)


def test_weights_that_moved_are_not_kept_alive(device):
    pair = Pair(device)
    pair.step(2)
    left = [weakref.ref(p.untyped_storage()) for p in pair.params[0]]
    for p in pair.params[0]:
        p.data = p.data.clone()
    pair.step(1)
    gc.collect()
    assert all(ref() is None for ref in left)


def test_nothing_is_kept_alive_when_model_and_optimizer_are_gone(device):
    pair = Pair(device)
    pair.step(2)
    states = [x for p in pair.params[0] for x in (p, *pair.optimizers[0].state[p].values())]
    left = [weakref.ref(x.untyped_storage()) for x in states]
    del pair, states
    gc.collect()
    assert all(ref() is None for ref in left)


def test_copies_of_half_precision_weights_are_not_kept_alive(device, monkeypatch):
    widened, load = [], Bucket.load

    def watched(self, *args):
        phases = load(self, *args)
        widened.extend(weakref.ref(x.q.untyped_storage()) for x in phases)
        return phases

    monkeypatch.setattr(Bucket, "load", watched)
    pair = Pair(device, dtype=torch.bfloat16)
    pair.step(2)
    gc.collect()
    assert len(widened) == (8 if device == "cpu" else 2)  # a GPU's kernels widen what they read
    assert all(ref() is None for ref in widened)


def test_autograd_notices_the_steps(device):
    pair = Pair(device)
    pair.step(2)
    (p, *_), opt = pair.params[0], pair.optimizers[0]
    loss = p.square().sum()
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_mode_and_back(device):
    pair = Pair(device)
    with torch.inference_mode():
        pair.step(2)
    pair.step(2)
    pair.check()
