"""The compiled backend takes the steps of the reference backend, to rounding, and compiles no more than it must."""

import warnings
from itertools import product

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from holonom import Langevin, optimizer
from holonom._backends import inductor
from holonom._backends.inductor import Inductor
from holonom._random import philox
from holonom._step import run
from holonom._step.integrate import Eager
from holonom._torch import known_options
from holonom.constraints import Circle, Free, Sphere

from .cases import assert_close, assert_equal, snapshot

SPACES = {
    "free": None,
    "circle": Circle(1.5),
    "circle-radii": Circle(torch.linspace(1.5, 2.5, 10)),
    "sphere": Sphere(9.0),
    "sphere-fixed": Sphere(1.0, slack=False),
    "sphere-matrix": Sphere("initial", per="matrix", factor=1.5),
}
DTYPES = {"f64": (torch.float64, 1e-11), "f32": (torch.float32, 1e-5), "bf16": (torch.bfloat16, 2e-2)}
KINDS = ("plain", "replicas", "skipped")
WORDS = ("OBA", "BAOAB", "L", "BACDEDCAB", "BAFEFAB")
TABLE = [*product(SPACES, WORDS, DTYPES, KINDS), *product(["free"], ["M"], DTYPES, KINDS)]
REPRESENTATIVE = [
    ("free", "BAOAB", "f32", "replicas"),
    ("circle", "BAOAB", "f64", "plain"),
    ("sphere", "L", "f32", "skipped"),
    ("circle-radii", "BACDEDCAB", "bf16", "plain"),
    ("sphere-matrix", "BAOAB", "f32", "replicas"),
]


class Net(nn.Module):
    """A matrix and a vector; replicas have two matrices, which a batch of spheres needs."""

    def __init__(self, *batch, dtype=torch.float32, space="free", init=0):
        super().__init__()
        generator = torch.Generator().manual_seed(init)
        shapes = ((6, 10), (3, 10) if batch else (10,))
        weight, bias = (torch.rand(*batch, *shape, generator=generator) - 0.5 for shape in shapes)
        if space == "sphere-fixed":
            weight, bias = nn.functional.normalize(weight, dim=-1), nn.functional.normalize(bias, dim=-1)
        self.weight, self.bias = nn.Parameter(weight.to(dtype)), nn.Parameter(bias.to(dtype))


def build(space="free", word="BAOAB", dtype=torch.float32, replicas=0, init=0, **options):
    net = Net(*[replicas] * bool(replicas), dtype=dtype, space=space, init=init)
    own = SPACES[space]
    if replicas and isinstance(own, Sphere) and own.per == "row":
        own = Sphere(own.radius, own.has_slack, view="batch")
    numbers = {"lr": 0.1, "temperature": 0.01, "weight_decay": 0.1, "scheme": word, "constraint": own, "seed": 0}
    if replicas:
        numbers |= {"seed": torch.arange(replicas), "lr": torch.linspace(0.05, 0.1, replicas)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows of half precision are not of unit length
        return net, Langevin(net.named_parameters(), **{**numbers, **options})


def train(net, opt, steps, gradient=torch.sin):
    for _ in range(steps):
        for p in net.parameters():
            p.grad = gradient(p.detach())
        opt.step()


@pytest.fixture
def fresh(monkeypatch):
    """No kernels yet; those compiled by other tests come back."""
    monkeypatch.setattr(inductor, "_kernels", {})
    monkeypatch.setattr(inductor, "_fixed", {})


@pytest.fixture
def staged(monkeypatch):
    """The stages that ran compiled and, of those, eagerly."""
    calls = {"compiled": 0, "eager": 0}
    compiled, eager = inductor.run_compiled, Eager.stage

    def run_compiled(*args, **options):
        done = compiled(*args, **options)
        calls["compiled"] += done
        return done

    def stage(*args):
        calls["eager"] += 1
        eager(*args)

    monkeypatch.setattr(inductor, "run_compiled", run_compiled)
    monkeypatch.setattr(Eager, "stage", stage)
    return calls


# ── the table ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("space", "word", "precision", "kind"),
    [pytest.param(*case, marks=() if case in REPRESENTATIVE else pytest.mark.long) for case in TABLE],
)
def test_a_compiled_step_is_the_reference_step(space, word, precision, kind, staged, monkeypatch):
    dtype, tolerance = DTYPES[precision]
    monkeypatch.setattr(inductor, "compiled_normals", philox.normals)  # letters are compared beyond its precision
    skip = iter(4 * [False, True, False, False]) if kind == "skipped" else None
    if skip:
        monkeypatch.setattr(optimizer, "skip_non_finite", lambda work: torch.tensor(next(skip)))
    runs = []
    for fuse in (True, False):
        net, opt = build(space, word, dtype, replicas=2 * (kind == "replicas"), fuse=fuse)
        before = torch.get_rng_state()
        train(net, opt, 8)
        assert torch.equal(torch.get_rng_state(), before)
        runs.append(snapshot(net, opt))
        assert (staged["compiled"] == 0) != fuse
        assert (staged["eager"] == 0) == fuse
        staged.update(compiled=0)
    assert_close(*runs, tolerance)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("fuse", [True, False])
def test_a_skipped_step_leaves_everything_as_it_is(fuse, skip, monkeypatch):
    monkeypatch.setattr(inductor, "compiled_normals", philox.normals)
    net, opt = build("sphere", "L", fuse=fuse)
    train(net, opt, 2)
    before = snapshot(net, opt)
    monkeypatch.setattr(optimizer, "skip_non_finite", lambda work: torch.tensor(skip))
    train(net, opt, 1, lambda x: torch.full_like(x, torch.nan) if skip else x.sin())
    if skip:
        assert_equal(snapshot(net, opt), before)
    else:
        assert not any(torch.equal(x, before[name]) for name, x in snapshot(net, opt).items())


@pytest.mark.parametrize("replicas", [0, pytest.param(3, marks=pytest.mark.long)])
def test_compiled_draws_are_the_same_draws(replicas):
    seeds, step = torch.arange(7, 7 + replicas) if replicas else torch.tensor(7), torch.tensor(5)
    for shapes in ([(6, 10), (10,)], [(300,)], [(2, 3), (129, 2), ()]):
        layout = philox.Layout([torch.Size(shape) for shape in shapes], range(len(shapes)), torch.device("cpu"))
        compiled, plain = (layout.draw(seeds, step, 2, fill) for fill in (inductor.compiled_normals, philox.normals))
        torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)


# ── what is compiled, and when ────────────────────────────────────────────────────────────────────


def test_other_numbers_are_no_new_kernel():
    runs = []
    for fuse in (True, False):
        space = Circle(1.5)
        net, opt = build(constraint=space, temperature=0.0, fuse=fuse)
        train(net, opt, 1)
        count = len(inductor._kernels)
        for number in range(1, 5):
            opt.param_groups[0].update(lr=0.1 / number, friction=0.5 * number, weight_decay=0.01 * number)
            train(net, opt, 2)
        space.radius = 0.7
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opt.project_()
        train(net, opt, 2)
        assert len(inductor._kernels) == count
        assert net.weight.abs().max() <= 0.7
        runs.append(snapshot(net, opt))
    assert_close(*runs, 1e-5)


def test_a_rate_may_become_another_kind_of_number():
    rates = [torch.tensor([0.1, 0.05], dtype=torch.float64), torch.tensor([0.1]).expand(2), 0.1]
    runs = []
    for fuse in (True, False):
        net, opt = build(replicas=2, fuse=fuse, temperature=0.0)
        for rate in rates:
            train(net, opt, 2)
            opt.param_groups[0]["lr"] = rate
        train(net, opt, 2)
        runs.append(snapshot(net, opt))
    assert_close(*runs, 1e-5)


@pytest.mark.parametrize("interrupted", [2, 5], ids=["before the switch", "after it"])
def test_the_switch_comes_at_the_same_step_when_resumed(interrupted, staged, monkeypatch):
    monkeypatch.setattr(run, "COMPILE_AFTER", 4 * sum(p.numel() for p in Net().parameters()))
    net, opt = build("circle", temperature=0.0)
    train(net, opt, 4)
    assert staged == {"compiled": 0, "eager": 4}
    train(net, opt, 4)
    assert staged == {"compiled": 4, "eager": 4}

    first, first_opt = build("circle", temperature=0.0)
    train(first, first_opt, interrupted)
    resumed, resumed_opt = build("circle", temperature=0.0, init=1)
    resumed.load_state_dict(first.state_dict())
    resumed_opt.load_state_dict(first_opt.state_dict())
    train(resumed, resumed_opt, 8 - interrupted)
    assert_equal(snapshot(resumed, resumed_opt), snapshot(net, opt))


def test_a_missing_gradient_does_not_move_the_switch(staged, monkeypatch):
    monkeypatch.setattr(run, "COMPILE_AFTER", 2 * sum(p.numel() for p in Net().parameters()))
    net, opt = build("circle", temperature=0.0)
    train(net, opt, 2)
    net.weight.grad = None
    opt.step()
    assert staged == {"compiled": 1, "eager": 2}


def test_small_models_are_never_compiled_of_themselves(staged):
    net, opt = build()
    train(net, opt, 3)
    assert staged == {"compiled": 0, "eager": 3}


# ── failures ──────────────────────────────────────────────────────────────────────────────────────


def broken(*args, **options):
    def kernel(*inputs):
        raise BackendCompilerFailed(None, RuntimeError("no compiler here\nand much detail"), None)

    return kernel


@pytest.mark.parametrize("temperature", [0.0, 0.01])
def test_a_kernel_that_does_not_compile_warns_once_and_the_step_runs_once(temperature, fresh, monkeypatch):
    plain = build("circle", fuse=False, temperature=temperature)
    train(*plain, 3)
    monkeypatch.setattr(inductor, "make_kernel", broken)
    monkeypatch.setattr(inductor, "compiled_normals", philox.normals)
    net, opt = build("circle", fuse=True, temperature=temperature)
    with pytest.warns(UserWarning, match=r"torch.compile did not work here \(.*no compiler here.*uncompiled") as caught:
        train(net, opt, 3)
    assert len(caught) == 1
    assert_equal(snapshot(net, opt), snapshot(*plain))


@pytest.mark.parametrize("text", ["out of memory", "backend='inductor' raised:\nCppCompileError"])
def test_an_error_of_a_running_kernel_is_raised_and_nothing_runs_again(text, fresh, staged, monkeypatch):
    """Whatever it says: letters that had run before the error would act twice."""

    def failing(*args, **options):
        def kernel(phases, *inputs):
            phases[0].q.add_(1.0)
            raise RuntimeError(text)

        return kernel

    monkeypatch.setattr(inductor, "make_kernel", failing)
    net, opt = build(fuse=True, temperature=0.0)
    before = net.weight.detach().clone()
    with pytest.raises(RuntimeError, match=text.partition("\n")[0]):
        train(net, opt, 1)
    assert torch.equal(net.weight, before + 1.0)
    assert staged["eager"] == 0


def test_one_failure_leaves_other_kernels_compiled(fresh, staged, monkeypatch):
    make, made = inductor.make_kernel, []

    def first_fails(*args, **options):
        made.append(args)
        return broken() if len(made) == 1 else make(*args, **options)

    monkeypatch.setattr(inductor, "make_kernel", first_fails)
    with pytest.warns(UserWarning, match="no compiler here"):
        train(*build(fuse=True, temperature=0.0), 2)
    assert staged == {"compiled": 0, "eager": 2}
    train(*build("circle", fuse=True, temperature=0.0), 2)
    assert staged == {"compiled": 2, "eager": 2}


def test_draws_that_do_not_compile_leave_kernels_compiled(fresh, staged, monkeypatch):
    monkeypatch.setitem(inductor._kernels, ("normals", torch.device("cpu"), 0), broken())
    with pytest.warns(UserWarning, match="no compiler here"):
        train(*build(fuse=True, word="OBA"), 2)
    assert staged == {"compiled": 2, "eager": 0}


def test_an_option_that_this_torch_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setattr(inductor, "OPTIONS", {**inductor.OPTIONS, "no_such_option": True})
    assert known_options(inductor.OPTIONS).keys() == known_options({**inductor.OPTIONS, "another": 1}).keys()
    assert "size_asserts" in known_options(inductor.OPTIONS)
    assert callable(inductor.make_kernel(Free(), [("B", None)], None, dynamic=False))


def test_a_kernel_is_never_given_tensors_of_another_rank(fresh, monkeypatch):
    """Kernels for all sizes, fixed ones used up: keys and what they are called with."""
    monkeypatch.setattr(inductor, "MAX_FIXED", 2)
    seen = []

    def watching(*args, dynamic, **options):
        called = []
        seen.append((dynamic, called))
        return lambda phases, forces, numbers, noises: called.append([tuple(x.q.shape) for x in phases])

    monkeypatch.setattr(inductor, "make_kernel", watching)
    for shapes in ([(9,)], [(8,)], [(7,)], [(4, 3)], [(6,)], [(2, 3, 4)], [(5, 3)], [(4,), (3, 2)], [(3, 2), (4,)]):
        params = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
        opt = Langevin(params, 0.1, scheme="OBA", fuse=True)
        for p in params:
            p.grad = torch.ones_like(p)
        opt.step()
    assert {dynamic for dynamic, _ in seen} == {True, False}
    for dynamic, called in seen:
        assert len({tuple(map(len, shapes)) if dynamic else tuple(shapes) for shapes in called}) == 1


def test_many_tensors_share_kernels_for_all_sizes(fresh, staged, monkeypatch):
    monkeypatch.setattr(inductor, "MAX_PACK", 2)
    monkeypatch.setattr(inductor, "MIN_COMPILED", 20)
    shapes = [(6, 10), (7, 11), (30,), (9, 4), (5, 6), (25,), (3, 10), (40,), (7,)]
    runs = []
    for fuse in (True, False):
        generator = torch.Generator().manual_seed(0)
        net = nn.ParameterList(torch.rand(shape, generator=generator) - 0.5 for shape in shapes)
        opt = Langevin(net.parameters(), 0.1, scheme="OBA", fuse=fuse)
        train(net, opt, 3)
        runs.append(snapshot(net, opt))
    assert staged == {"compiled": 3 * 4, "eager": 3 + 3}  # four packs and one small tensor, then all
    assert len(inductor._kernels) == len({(len(a), len(b)) for a, b in zip(shapes[:8:2], shapes[1:8:2], strict=True)})
    assert_close(*runs, 1e-5)
    assert isinstance(run.choose_backend(opt.param_groups[0] | {"fuse": True}, opt._buckets()[0]), Inductor)
