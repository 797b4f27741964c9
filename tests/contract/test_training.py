"""The training loop: compiled or not it takes the same steps, and a killed run resumes bit-equal."""

from types import SimpleNamespace

import pytest
import torch
from holonom.capture import Stepper, _same
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from holonom import CheckpointError, Ensemble, Langevin, TemperatureSchedule, annealing, capture, compiling, presets
from holonom.batches import Shuffled, Windows
from holonom.models import mlp
from holonom.training import train

R, STEPS = 3, 11
pytestmark = pytest.mark.filterwarnings("ignore:weights that did not satisfy")

OPTIMIZERS = {
    "sgd": lambda e: torch.optim.SGD(e.parameters(), 0.1, momentum=0.9),
    "adam": lambda e: torch.optim.Adam(e.parameters(), 0.01),
    "c_cola_od": lambda e: presets.c_cola_od(e, 0.05, 1.0, temperature=1e-3),
    "o_cola_ud": lambda e: presets.o_cola_ud(e, 0.05, layers="all", temperature=1e-3),
    "adlala": presets.adlala,
    "ladder": lambda e: presets.langevin(e, 0.1, temperature=torch.tensor([0.0, 1e-4, 1e-3])),
}


class Killed(Exception):
    pass


def loss(output, target):
    return binary_cross_entropy_with_logits(output.squeeze(-1), target)


def make(dropout=False):
    middle = [nn.Dropout(0.5)] if dropout else []
    return nn.Sequential(mlp([2, 8, 8]), nn.BatchNorm1d(8), *middle, nn.Linear(8, 1))


def make_small(dropout=False):
    """For what is compiled with its noise, which takes ten seconds a tensor."""
    return nn.Sequential(nn.Linear(2, 4, bias=False), nn.Tanh(), nn.Linear(4, 1, bias=False))


def make_tiny(dropout=False):
    return nn.Linear(2, 1)


def setting(optimizer, dropout=False, network=make):
    ensemble = Ensemble(lambda: network(dropout), R)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(R, 10, 2, generator=generator)
    batches = Shuffled(x, (x[..., 0] > 0).float(), 4, ensemble.seeds, own_data=True)
    return ensemble, OPTIMIZERS[optimizer](ensemble), batches, x


def run(optimizer, dropout=False, kill_at=None, network=make, **options):
    ensemble, chosen, batches, x = setting(optimizer, dropout, network)

    def evaluate(e):
        calls.append(0)
        if len(calls) == kill_at:
            raise Killed
        return {"mean": e(x, shared=False).mean((1, 2))}

    calls = []
    history = train(ensemble, chosen, loss, batches, STEPS, evaluate=evaluate, evaluations=4, **options)
    return ensemble, history


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_killed_runs_resume_bit_equal(optimizer, dropout, tmp_path):
    straight, whole = run(optimizer, dropout)
    file = tmp_path / "run.pt"
    with pytest.raises(Killed):
        run(optimizer, dropout, kill_at=4, checkpoint=file)
    resumed, history = run(optimizer, dropout, checkpoint=file)
    assert history.steps == whole.steps == [0, 3, 6, 8, 11]
    assert torch.equal(history["mean"], whole["mean"])
    for (name, a), b in zip(straight.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_a_finished_run_is_only_read(tmp_path):
    _, history = run("sgd", checkpoint=tmp_path / "run.pt")
    _, again = run("sgd", checkpoint=tmp_path / "run.pt", kill_at=1)
    assert torch.equal(history["mean"], again["mean"])


def test_foreign_and_broken_checkpoints_are_refused(tmp_path):
    file = tmp_path / "run.pt"
    run("sgd", checkpoint=file)
    ensemble, optimizer, batches, _ = setting("sgd")
    with pytest.raises(CheckpointError, match="of a run of 11 steps"):
        train(ensemble, optimizer, loss, batches, 5, evaluate=lambda e: {}, checkpoint=file)
    other = Ensemble(make, R + 1)
    with pytest.raises(CheckpointError, match="number of replicas"):
        train(other, OPTIMIZERS["sgd"](other), loss, batches, STEPS, evaluate=lambda e: {}, checkpoint=file)
    file.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="delete it to start over"):
        train(ensemble, optimizer, loss, batches, STEPS, evaluate=lambda e: {}, checkpoint=file)


def test_training_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    run("sgd", dropout=True)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("optimizer", "compiled", "network"),
    [
        ("sgd", True, make),
        ("adlala", True, make_small),
        ("c_cola_od", "gradients", make),
    ],
)
def test_compiled_steps_are_the_same_steps(optimizer, compiled, network):
    plain, history = run(optimizer, compiled=False, network=network)
    fast, other = run(optimizer, compiled=compiled, network=network)
    assert history.steps == other.steps
    for (name, a), b in zip(plain.state_dict().items(), fast.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5, msg=name)


def test_a_compiled_step_sees_a_rate_that_is_replaced():
    found = []
    for compiled in (False, True):
        ensemble = Ensemble(make_tiny, R)
        optimizer = Langevin(ensemble.parameters(), torch.tensor([0.1, 0.2, 0.3]), scheme="L", seed=ensemble.seeds)
        x = torch.randn(R, 10, 2, generator=torch.Generator().manual_seed(0))
        batches = Shuffled(x, (x[..., 0] > 0).float(), 4, ensemble.seeds, own_data=True)

        def after(epoch, group=optimizer.param_groups[0]):
            group["lr"] = group["lr"] + 0.1 * epoch

        train(ensemble, optimizer, loss, batches, 8, evaluate=lambda e: {}, after_epoch=after, compiled=compiled)
        found.append([p.detach() for p in ensemble.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_what_a_recording_must_be_made_anew_for():
    """A schedule of temperatures, one for each replica, replaces their tensor."""
    ensemble, optimizer, batches, _ = setting("ladder")
    stepper = Stepper(ensemble, optimizer, loss, batches, compiled=False)
    before = stepper._numbers()
    optimizer.param_groups[0]["temperature"].mul_(2.0)
    assert _same(before, stepper._numbers())
    schedule = TemperatureSchedule(optimizer, annealing(20))
    for _ in range(20):  # one of the new tensors could lie where the first one was
        schedule.step()
        assert not _same(before, stepper._numbers())
    rate = optimizer.param_groups[0]["lr"] = torch.tensor(0.1)  # one number on the host is a number to programs
    before = stepper._numbers()
    rate.mul_(0.5)
    assert not _same(before, stepper._numbers())


def test_schedulers_act_between_epochs():
    ensemble, optimizer, batches, _ = setting("sgd")
    epochs, rates = [], []
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def after(epoch):
        epochs.append(epoch)
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()

    train(ensemble, optimizer, loss, batches, 6, evaluate=lambda e: {}, after_epoch=after)
    assert epochs == [1, 2, 3]
    assert rates == [0.1, 0.05, 0.025]


def test_windows_serve_a_text_and_what_follows():
    streams = torch.arange(20).reshape(10, 2)
    windows = Windows(streams, 4)
    order = windows.order(0)
    assert order.tolist() == [0, 4]
    x, y = windows.take(order[1])
    assert torch.equal(x, streams[4:8])
    assert torch.equal(y, streams[5:9])


@pytest.mark.parametrize(("optimizer", "compiled"), [("sgd", True), ("sgd", "gradients")])
def test_without_a_compiler_training_goes_on_and_says_so_once(optimizer, compiled, monkeypatch, recwarn):
    from torch._inductor import config

    torch.compiler.reset()
    monkeypatch.setattr(compiling, "_said", False)
    with config.patch({"cpp.cxx": (None, "/nowhere/g++"), "force_disable_caches": True}):
        without, _ = run(optimizer, compiled=compiled, network=make_tiny)
    torch.compiler.reset()
    plain, _ = run(optimizer, compiled=False, network=make_tiny)
    for (name, a), b in zip(plain.state_dict().items(), without.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert len([w for w in recwarn if "did not work here" in str(w.message)]) == 1


def test_what_is_to_be_compiled_must_be_known():
    with pytest.raises(ValueError, match=r"compiled must be True, False or \"gradients\", got 'gradient'"):
        run("sgd", compiled="gradient")


def test_a_recording_owes_at_its_own_rate(monkeypatch):
    """What a word owes from the step before is a constant of a recording: a step comes between a change and the next.

    As on a GPU, but a recording takes its step and a replay takes another.
    """
    ensemble = Ensemble(lambda: nn.Linear(2, 1), 2)
    optimizer = Langevin(ensemble.parameters(), 0.1, seed=ensemble.seeds)
    batches = Shuffled(torch.zeros(8, 2), torch.zeros(8), 2, ensemble.seeds)
    stepper = Stepper(ensemble, optimizer, lambda output, y: (output[:, 0] - y).square().mean(), batches, False)
    group, seen = optimizer.param_groups[0], []

    def record(step):
        seen.append((group["owed"], group["lr"]))
        step()
        return SimpleNamespace(replay=lambda: None)

    monkeypatch.setattr(capture, "record", record)
    for rate in (0.1, 0.05, 0.02):
        group["lr"] = rate
        stepper._keep(batches.order(0))
        for _ in range(6):
            stepper._replay(1)
            stepper._cursor.zero_()
    assert seen == [(rate, rate) for rate in (0.1, 0.05, 0.02)]
