"""Compiled and captured training steps are the plain ones, whatever changes between them, and resume bit-equal."""

import random
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from holonom import Ensemble, Langevin, TemperatureSchedule, annealing, presets
from holonom._backends.inductor import with_own_code
from holonom._torch import guards_where
from holonom._training import graphs, stepper
from holonom._training.graphs import GraphedStep
from holonom._training.stepper import Stepper
from holonom._training.whole import WholeStep
from holonom.batches import Shuffled
from holonom.constraints import Circle, Sphere, View
from holonom.scheme import compile_word
from holonom.training import train

from .test_training import (
    OPTIMIZERS,
    STEPS,
    Killed,
    R,
    assert_same_run,
    loss,
    make,
    make_small,
    make_tiny,
    run,
    setting,
)

pytestmark = pytest.mark.filterwarnings("ignore:weights that did not satisfy")


@pytest.fixture
def whole_steps(monkeypatch):
    """The calls of programs of whole steps."""
    calls, call = [], WholeStep.__call__
    monkeypatch.setattr(WholeStep, "__call__", lambda self: calls.append(0) or call(self))
    return calls


@pytest.mark.parametrize(
    ("optimizer", "compiled", "network", "whole"),
    [
        ("c_sgd", True, make_tiny, STEPS),
        ("sgd", "gradients", make_tiny, 0),
        pytest.param("sgd", True, make, 0, marks=pytest.mark.long),
        pytest.param("c_cola_od", "gradients", make, 0, marks=pytest.mark.long),
        *(pytest.param(name, True, make_small, None, marks=pytest.mark.long) for name in OPTIMIZERS),
    ],
)
def test_compiled_steps_are_the_same_steps(optimizer, compiled, network, whole, whole_steps):
    plain, history = run(optimizer, compiled=False, network=network)
    fast, other = run(optimizer, compiled=compiled, network=network)
    assert history.steps == other.steps
    assert whole in (None, len(whole_steps))
    for (name, a), b in zip(plain.state_dict().items(), fast.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.long
def test_compiled_steps_with_large_seeds_are_the_same_steps():
    """One number for the whole ensemble is a constant of the program: a second one is another program."""
    for seed in (5_000_000_000_000_000_001, (1 << 63) - 2):
        found = []
        for compiled in (False, True):
            ensemble, _, batches, _ = setting("sgd", network=make_tiny)
            optimizer = Langevin(ensemble.parameters(), 0.1, temperature=0.01, seed=seed)
            train(ensemble, optimizer, loss, batches, 4, evaluate=lambda e: {}, compiled=compiled)
            found.append([p.detach() for p in ensemble.parameters()])
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_compiled_step_in_double_precision_is_exact_to_double_precision():
    found = []
    for compiled in (False, True):
        ensemble = Ensemble(lambda: make_tiny().double(), R, seed=0)
        x = torch.randn(10, 2, generator=torch.Generator().manual_seed(0)).double()
        batches = Shuffled(x, (x[:, 0] > 0).double(), 4, ensemble.seeds)
        optimizer = presets.langevin(ensemble, 0.1, temperature=0.0)
        train(ensemble, optimizer, loss, batches, STEPS, evaluate=lambda e: {}, compiled=compiled)
        found.append([p.detach() for p in ensemble.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-13, atol=1e-13)


class Upsampled(nn.Module):
    """A transposed convolution, whose rows are no view of its memory."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3, 2) / 10)

    def forward(self, x):
        return nn.functional.conv_transpose1d(x[:, :, None], self.weight).mean((1, 2))


@pytest.mark.parametrize("options", [{}, {"radius": "initial", "per": "column"}, {"slack": False, "per": "matrix"}])
def test_a_whole_step_writes_weights_whose_rows_are_copies(whole_steps, monkeypatch, options):
    """Traced and made functional, without Inductor, whose kernels are not what is tested."""

    def compile_step(function, options):
        return torch.compile(with_own_code(function), backend="aot_eager", fullgraph=True, dynamic=False)

    monkeypatch.setattr(stepper, "compile_step", compile_step)
    found = []
    for compiled in (False, True):
        ensemble = Ensemble(Upsampled, R, seed=0)
        before = ensemble.weight.detach().clone()
        x = torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
        batches = Shuffled(x, (x[:, 0] > 0).float(), 4, ensemble.seeds)
        space = Sphere(**options, view=View(batch=1, output=1))
        optimizer = Langevin(ensemble.parameters(), 0.1, temperature=0.01, constraint=space, seed=ensemble.seeds)
        train(ensemble, optimizer, loss, batches, STEPS, evaluate=lambda e: {}, compiled=compiled)
        assert not torch.equal(ensemble.weight, before)
        found.append([ensemble.weight.detach(), optimizer.state[ensemble.weight]["momentum"]])
    torch.testing.assert_close(*found, rtol=1e-4, atol=2e-5)
    assert len(whole_steps) == STEPS


# ── numbers that change ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("word", "way"),
    [
        ("BAOAB", "in place"),
        *(
            pytest.param(*x, marks=pytest.mark.long)
            for x in [("BAOAB", "float"), ("BAOAB", "replaced"), ("ABO", "in place"), ("ABO", "float")]
        ),
    ],
)
def test_a_compiled_step_sees_rates_and_temperatures_that_change(word, way, whole_steps):
    """What a rotated word owes is owed at the last step's rate; a rate of 0 changes nothing."""
    found = []
    for compiled in (False, True):
        ensemble, _, batches, _ = setting("sgd", network=make_tiny)
        rate, temperature = (0.1, 1e-3) if way == "float" else (torch.tensor([0.1, 0.2, 0.3]), 0.0)
        optimizer = presets.langevin(ensemble, rate, temperature=temperature, scheme=word)

        def after(epoch, group=optimizer.param_groups[0]):
            if way == "in place":
                group["lr"].mul_(0.5)
            else:
                group["lr"] = group["lr"] * (0.0 if epoch == 3 and way == "float" else 0.5) + 0.05 * (epoch == 4)
            if way == "float":
                group["temperature"] = 1e-3 * epoch

        train(ensemble, optimizer, loss, batches, 11, evaluate=lambda e: {}, after_epoch=after, compiled=compiled)
        found.append([p.detach() for p in ensemble.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert len(whole_steps) == (9 if way == "float" else 11)


class Weighted:
    """A loss that is an object."""

    epochs = 1

    def __call__(self, output, target):
        return self.epochs * loss(output, target)


COUNTER = SimpleNamespace(epochs=1)


def weighted_by_global(output, target):
    return COUNTER.epochs * loss(output, target)


def weighted(way):
    """A loss with a Python number in it, and the object that holds the number."""
    COUNTER.epochs, counter = 1, SimpleNamespace(epochs=1)
    if way == "default":
        return (lambda output, target, own=counter: own.epochs * loss(output, target)), counter
    if way == "closure":
        return (lambda output, target: counter.epochs * loss(output, target)), counter
    return (weighted_by_global, COUNTER) if way == "global" else (one := Weighted(), one)


@pytest.fixture(params=["eager", pytest.param("inductor", marks=pytest.mark.long)])
def backend(request, monkeypatch):
    """What compiles a step: with Inductor, or traced and guarded alike but quicker."""

    def compile_step(function, options):
        guards = guards_where(stepper._is_of_the_user)
        return torch.compile(with_own_code(function), backend="eager", fullgraph=True, dynamic=False, options=guards)

    if request.param == "eager":
        monkeypatch.setattr(stepper, "compile_step", compile_step)


@pytest.mark.parametrize("compiled", [True, pytest.param("gradients", marks=pytest.mark.long)])
@pytest.mark.parametrize("way", ["closure", "default", "global", "object"])
def test_a_compiled_loss_may_read_a_python_number_that_changes(way, compiled, backend):
    found = []
    for setting_of_compiled in (False, compiled):
        ensemble, _, batches, _ = setting("sgd", network=make_tiny)
        optimizer = Langevin(ensemble.parameters(), 0.1, scheme="OBA", fuse=False)
        own_loss, counter = weighted(way)

        def after(epoch, counter=counter):
            counter.epochs = 1 + epoch % 2

        options = {"evaluate": lambda e: {}, "after_epoch": after, "compiled": setting_of_compiled}
        train(ensemble, optimizer, own_loss, batches, 8, **options)
        found.append([p.detach() for p in ensemble.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


# ── resuming ──────────────────────────────────────────────────────────────────────────────────────


def scheduled(optimizer, **options):
    """A compiled run under schedules, evaluated and saved at every step."""
    compile_word.cache_clear()  # a new process has computed nothing of a word yet
    ensemble, chosen, batches, x = setting(optimizer, network=options.pop("network"))
    kill = options.pop("kill", None)

    def after(epoch):
        for group in chosen.param_groups:
            group["lr"] = group["lr"] * 0.8
            if "temperature" in group:
                group["temperature"] = group["temperature"] * 0.5

    def progress(step, *_):
        if step == kill:
            raise Killed

    def evaluate(e):
        return {"mean": e(x, shared=False).mean((1, 2))}

    options = {"evaluations": STEPS, "after_epoch": after, "progress": progress, "compiled": True, **options}
    history = train(ensemble, chosen, loss, batches, STEPS, evaluate=evaluate, **options)
    return ensemble, history


def make_single(dropout=False):
    return nn.Linear(2, 1, bias=False)


@pytest.mark.parametrize(
    ("optimizer", "network"),
    [
        ("baoab", make_single),
        *(pytest.param(x, make_small if x == "adlala" else make_tiny, marks=pytest.mark.long) for x in OPTIMIZERS),
    ],
)
@pytest.mark.filterwarnings("error:holonom. torch.compile did not work here")
def test_compiled_runs_that_are_killed_resume_bit_equal(optimizer, network, tmp_path):
    straight = scheduled(optimizer, network=network)
    file = tmp_path / "run.pt"
    kills = sorted(random.Random(optimizer).sample(range(2, STEPS), 2))
    for kill in kills:
        with pytest.raises(Killed):
            scheduled(optimizer, network=network, kill=kill, checkpoint=file)
        assert torch.load(file, weights_only=True)["step"] == kill - 1
    assert_same_run(scheduled(optimizer, network=network, checkpoint=file), straight)
    plain, _ = scheduled(optimizer, network=network, compiled=False)
    torch.testing.assert_close(straight[0].state_dict(), plain.state_dict(), rtol=1e-4, atol=2e-5)


# ── without a compiler ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("baoab", marks=pytest.mark.long)])
def test_without_a_compiler_training_goes_on_and_says_so(optimizer, recwarn):
    from torch._inductor import config

    torch.compiler.reset()
    with config.patch({"cpp.cxx": (None, "/nowhere/g++"), "force_disable_caches": True}):
        without, _ = run(optimizer, compiled=True, network=make_tiny)
    torch.compiler.reset()
    plain, _ = run(optimizer, compiled=False, network=make_tiny)
    for (name, a), b in zip(plain.state_dict().items(), without.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert [w for w in recwarn if "did not work here" in str(w.message)]


# ── graphs ────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_graph_must_be_captured_anew_for():
    """A schedule of temperatures, one for each replica, replaces their tensor."""
    ensemble, optimizer, batches, _ = setting("ladder")
    constants = Stepper(ensemble, optimizer, loss, batches, compiled=False)._constants
    before = constants()
    optimizer.param_groups[0]["temperature"].mul_(2.0)
    assert graphs._same(before, constants())
    schedule = TemperatureSchedule(optimizer, annealing(20))
    for _ in range(20):  # one of the new tensors could lie where the first one was
        schedule.step()
        assert not graphs._same(before, constants())
    rate = optimizer.param_groups[0]["lr"] = torch.tensor(0.1)  # one number on the host is a number to programs
    before = constants()
    rate.mul_(0.5)
    assert not graphs._same(before, constants())
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1, device="meta")  # one on a device is read there
    assert graphs._same(constants(), constants())


def test_a_graph_owes_at_its_own_rate(monkeypatch):
    """What a word owes from the step before is a constant of a graph: a step comes between a change and the capture."""
    p = nn.Parameter(torch.zeros(3))
    optimizer = Langevin([p], 0.1)
    group, seen = optimizer.param_groups[0], []

    def step():
        p.grad = torch.ones_like(p)
        optimizer.step()

    def record(step):
        seen.append((group["owed"], group["lr"]))
        return SimpleNamespace(replay=lambda: None)

    monkeypatch.setattr(graphs, "record", record)
    steps = GraphedStep(step, lambda: [group["lr"]], torch.device("cuda"), warm_up=1)
    for rate in (0.1, 0.05, 0.02):
        group["lr"] = rate
        for _ in range(6):
            steps()
    assert seen == [(rate, rate) for rate in (0.1, 0.05, 0.02)]


@pytest.mark.parametrize("optimizer", ["sgd", "c_cola_od", pytest.param("adlala", marks=pytest.mark.long)])
def test_graphs_of_many_steps_take_the_same_steps(optimizer, monkeypatch):
    """Replays on no GPU: each runs the Python of its capture, which the host then counts off again."""
    sizes = []

    def record(step):
        (size,) = step.args
        sizes.append(size)
        found[-1]._count(size)  # a capture runs the Python of its steps
        return SimpleNamespace(replay=lambda: (step(), found[-1]._count(-size)))

    monkeypatch.setattr(graphs, "record", record)
    monkeypatch.setattr(graphs, "GROW_AFTER", 2)
    found = []
    for captured in (False, True):
        ensemble, chosen, batches, _ = setting(optimizer, network=make_tiny)
        found.append(Stepper(ensemble, chosen, loss, batches, compiled=False))
        if captured:
            own = found[-1]
            device, count, many = torch.device("cuda"), own._count, own._capture
            own._steps = GraphedStep(own._step, own._constants, device, count=count, many=many)
        for epoch in range(12):
            found[-1].run(batches.order(epoch))
    assert max(sizes) > 1
    plain, fast = (one.ensemble.state_dict() for one in found)
    assert all(torch.equal(value, fast[name]) for name, value in plain.items())
    assert [g.get("step") for g in found[0].optimizer.param_groups] == [
        g.get("step") for g in found[1].optimizer.param_groups
    ]


@pytest.mark.parametrize(
    ("word", "space"),
    [
        ("L", "circle"),
        ("BACDEDCAB", "sphere"),
        *(
            pytest.param(word, space, marks=pytest.mark.long)
            for word, space in [("BAOAB", "free"), ("BAOAB", "circle")]
        ),
    ],
)
def test_a_compiler_sees_one_graph_without_multi_tensor_operations(word, space, monkeypatch):
    """A GPU's compiler may launch multi-tensor kernels that depend on each other at once: a race."""
    seen = []

    def look(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    def compile_step(function, options):
        return torch.compile(with_own_code(function), backend=look, fullgraph=True, dynamic=False)

    monkeypatch.setattr(stepper, "compile_step", compile_step)
    ensemble = Ensemble(make_tiny, R, seed=0)
    spaces = {"free": None, "circle": Circle(1.0), "sphere": Sphere(1.0, view="batch")}
    groups = [{"params": [ensemble.weight], "constraint": spaces[space]}, {"params": [ensemble.bias]}]
    optimizer = Langevin(
        groups, 0.1, scheme=word, temperature=0.01, weight_decay=0.1, maximize=True, seed=ensemble.seeds
    )
    x = torch.randn(R, 10, 2, generator=torch.Generator().manual_seed(0))
    batches = Shuffled(x, (x[..., 0] > 0).float(), 4, ensemble.seeds, own_data=True)
    train(ensemble, optimizer, loss, batches, 1, evaluate=lambda e: {}, compiled=True)
    assert seen
    assert not [name for name in seen if "foreach" in name]
