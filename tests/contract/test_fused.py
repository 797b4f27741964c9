"""The compiled step: the same numbers to rounding, the same draws, the same step to switch at."""

import warnings

import pytest
import torch
from torch import nn

from holonom import Langevin, compiling, fuse
from holonom.constraints import Circle, Sphere

from .cases import assert_close, assert_equal, snapshot

SPACES = {"free": None, "circle": Circle(1.5), "sphere": Sphere(9.0)}
WORD = "OBA"
SIDE = 128  # the smallest matrix that is worth a compiled call


class Big(nn.Module):
    """One weight large enough to compile, and one that never is."""

    def __init__(self, dtype=torch.float32, init=0):
        super().__init__()
        generator = torch.Generator().manual_seed(init)
        self.weight = nn.Parameter(torch.rand(SIDE, SIDE, generator=generator).to(dtype) - 0.5)
        self.small = nn.Parameter(torch.rand(3, 4, generator=generator).to(dtype) - 0.5)
        assert self.weight.numel() >= fuse.SMALLEST > self.small.numel()


def build(space="free", dtype=torch.float32, init=0, **options):
    net = Big(dtype, init)
    numbers = {"lr": 0.1, "scheme": WORD, "constraint": SPACES[space], "temperature": 0.01, **options}
    return net, Langevin(net.named_parameters(), **numbers)


def train(net, opt, steps):
    for _ in range(steps):
        for p in net.parameters():
            p.grad = p.detach().sin()
        opt.step()


@pytest.fixture
def compiled(monkeypatch):
    """The calls of compiled kernels."""
    monkeypatch.setattr(compiling, "_said", False)
    calls = []
    make = fuse.make_kernel

    def spy(*args, **options):
        kernel = make(*args, **options)

        def call(*inputs):
            calls.append(args)
            return kernel(*inputs)

        return call

    monkeypatch.setattr(fuse, "make_kernel", spy)
    return calls


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-12)], ids=["f32", "f64"])
@pytest.mark.parametrize("space", SPACES)
def test_compiled_steps_are_the_same_steps(space, dtype, tolerance, compiled):
    net, opt = build(space, dtype, fuse=True)
    plain, plain_opt = build(space, dtype, fuse=False)
    rng = torch.get_rng_state()
    train(net, opt, 20)
    assert len(compiled) == 20
    train(plain, plain_opt, 20)
    assert len(compiled) == 20
    assert torch.equal(torch.get_rng_state(), rng)
    assert_close(snapshot(net, opt), snapshot(plain, plain_opt), tolerance)
    assert opt.residuals()[0] < 1e-5


def test_a_changed_rate_is_no_new_program(compiled):
    net, opt = build(fuse=True)
    plain, plain_opt = build(fuse=False)
    frames = torch._dynamo.utils.counters["stats"]
    for step in range(4):
        for o in (opt, plain_opt):
            o.param_groups[0]["lr"] = 0.1 / (step + 1)
            o.param_groups[0]["friction"] = 1.0 + step
            o.param_groups[0]["temperature"] = 0.01 * (step + 1)
        train(net, opt, 1)
        train(plain, plain_opt, 1)
        if step == 0:
            graphs = frames["unique_graphs"]
    assert frames["unique_graphs"] == graphs
    assert len(compiled) == 4
    assert_close(snapshot(net, opt), snapshot(plain, plain_opt), 5e-6)


@pytest.mark.parametrize("interrupted", [2, 5], ids=["before the switch", "after it"])
def test_the_switch_comes_at_the_same_step_when_resumed(interrupted, compiled, monkeypatch):
    elements = sum(p.numel() for p in Big().parameters())
    monkeypatch.setattr(fuse, "WORTH", 4 * elements)
    net, opt = build()
    train(net, opt, 4)
    assert not compiled
    train(net, opt, 4)
    assert len(compiled) == 4

    first, first_opt = build()
    train(first, first_opt, interrupted)
    fresh, fresh_opt = build(init=1)
    fresh.load_state_dict(first.state_dict())
    fresh_opt.load_state_dict(first_opt.state_dict())
    train(fresh, fresh_opt, 8 - interrupted)
    assert_equal(snapshot(fresh, fresh_opt), snapshot(net, opt))


def test_small_models_are_never_compiled_of_themselves(compiled):
    net, opt = build()
    train(net, opt, 3)
    assert not compiled


def broken_at_once(*_):
    raise RuntimeError("no compiler here\nand much detail")


def broken_when_called(*_):
    def kernel(*_):
        raise RuntimeError("no compiler here\nand much detail")

    return kernel


@pytest.mark.parametrize("make", [broken_at_once, broken_when_called])
@pytest.mark.parametrize("space", SPACES)
def test_where_compiling_fails_one_warning_is_given_and_training_goes_on(space, make, monkeypatch):
    plain, plain_opt = build(space, fuse=False)
    train(plain, plain_opt, 3)
    monkeypatch.setattr(fuse, "make_kernel", make)
    monkeypatch.setattr(compiling, "_said", False)
    assert compiling.available()
    net, opt = build(space, fuse=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(net, opt, 3)
        train(*build(space, fuse=True), 1)
    assert [str(w.message) for w in caught if "no compiler here" in str(w.message)] == [str(w.message) for w in caught]
    assert len(caught) == 1
    assert not compiling.available()
    assert_equal(snapshot(net, opt), snapshot(plain, plain_opt))
