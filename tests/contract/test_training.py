"""The training loop: evaluations, schedules and checkpoints; a killed run resumes bit-equal."""

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from holonom import CheckpointError, Ensemble, EnsembleError, Langevin, presets
from holonom.batches import Shuffled, Windows
from holonom.models import mlp
from holonom.training import train

R, STEPS = 3, 11
pytestmark = pytest.mark.filterwarnings("ignore:weights that did not satisfy")

OPTIMIZERS = {
    "sgd": lambda e: torch.optim.SGD(e.parameters(), 0.1, momentum=0.9),
    "adam": lambda e: torch.optim.Adam(e.parameters(), 0.01),
    "c_sgd": lambda e: presets.c_cola_od(e, 0.05, 1.0),
    "sgld": lambda e: presets.sgld(e, 0.05, temperature=1e-3),
    "baoab": lambda e: presets.langevin(e, 0.1, temperature=1e-3),
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
    """Quick to compile."""
    return nn.Sequential(nn.Linear(2, 4, bias=False), nn.Tanh(), nn.Linear(4, 1, bias=False))


def make_tiny(dropout=False):
    return nn.Linear(2, 1)


def setting(optimizer, dropout=False, network=make, seed=0):
    ensemble = Ensemble(lambda: network(dropout), R, seed)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(R, 10, 2, generator=generator)
    batches = Shuffled(x, (x[..., 0] > 0).float(), 4, ensemble.seeds, own_data=True)
    return ensemble, OPTIMIZERS[optimizer](ensemble), batches, x


def run(optimizer, dropout=False, kill_at=None, network=make, seed=0, **options):
    """Train; ``kill_at``: the evaluation that raises instead."""
    ensemble, chosen, batches, x = setting(optimizer, dropout, network, seed)

    def evaluate(e):
        calls.append(0)
        if len(calls) == kill_at:
            raise Killed
        return {"mean": e(x, shared=False).mean((1, 2))}

    calls = []
    options = {"evaluations": 4, **options}
    history = train(ensemble, chosen, loss, batches, STEPS, evaluate=evaluate, **options)
    return ensemble, history


def assert_same_run(one, other):
    (ensemble, history), (again, other_history) = one, other
    assert history.steps == other_history.steps
    assert torch.equal(history["mean"], other_history["mean"])
    for (name, a), b in zip(ensemble.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    ("optimizer", "dropout"), [*((name, False) for name in OPTIMIZERS), ("sgd", True), ("o_cola_ud", True)]
)
def test_killed_runs_resume_bit_equal(optimizer, dropout, tmp_path):
    straight = run(optimizer, dropout)
    assert straight[1].steps == [0, 3, 6, 8, 11]
    file = tmp_path / "run.pt"
    with pytest.raises(Killed):
        run(optimizer, dropout, kill_at=4, checkpoint=file)
    assert_same_run(run(optimizer, dropout, checkpoint=file), straight)


@pytest.mark.parametrize("optimizer", ["sgd", "baoab"])
def test_killed_runs_without_a_seed_resume_bit_equal(optimizer, tmp_path):
    """Weights, noise and the order of the data are those of the run that was killed, whatever was drawn since."""
    file = tmp_path / "run.pt"
    torch.manual_seed(1)
    straight = run(optimizer, seed=None)
    torch.manual_seed(1)
    with pytest.raises(Killed):
        run(optimizer, seed=None, kill_at=4, checkpoint=file)
    torch.manual_seed(2)
    assert_same_run(run(optimizer, seed=None, checkpoint=file), straight)


def test_a_file_of_a_run_with_another_seed_is_refused(tmp_path):
    file = tmp_path / "run.pt"
    run("sgd", checkpoint=file)
    with pytest.raises(CheckpointError, match=r"another seed, which decides the order of the data"):
        run("sgd", seed=1, checkpoint=file)
    state = torch.load(file, weights_only=True)
    del state["seeds"]
    torch.save(state, file)
    with pytest.raises(CheckpointError, match=r"version 0\.1.*seed=0"):
        run("sgd", seed=None, checkpoint=file)
    run("sgd", checkpoint=file)


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
    other = Ensemble(make, R + 1, seed=0)
    with pytest.raises(CheckpointError, match="number of replicas"):
        train(other, OPTIMIZERS["sgd"](other), loss, batches, STEPS, evaluate=lambda e: {}, checkpoint=file)
    file.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="delete it to start over"):
        train(ensemble, optimizer, loss, batches, STEPS, evaluate=lambda e: {}, checkpoint=file)


def test_training_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    run("sgd", dropout=True)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("fails", [False, True])
def test_training_leaves_the_optimizers_settings_alone(fails, tmp_path):
    """Also if a step raises. During a step the guard is off: one diverged replica must not stop the others."""
    ensemble, optimizer, batches, _ = setting("baoab", network=make_tiny)
    optimizer.param_groups[0]["fuse"] = False
    optimizer.add_param_group({"params": [("other", nn.Parameter(torch.zeros(R, 2)))], "fuse": None})
    seen = []

    def watched(output, target):
        seen.append((optimizer.guard_gradients, [group["fuse"] for group in optimizer.param_groups]))
        if fails and len(seen) == 3:
            raise Killed
        return loss(output, target)

    file = tmp_path / "run.pt"
    try:
        train(ensemble, optimizer, watched, batches, 4, evaluate=lambda e: {}, compiled=False, checkpoint=file)
    except Killed:
        assert fails
    assert len(seen) == 3 + (not fails)
    assert {guard for guard, _ in seen} == {False}
    assert optimizer.guard_gradients
    for groups in (optimizer.param_groups, torch.load(file, weights_only=True)["optimizer"]["param_groups"]):
        assert [group["fuse"] for group in groups] == [False, None]


class Counting(Langevin):
    count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["overridden step", "hook"])
def test_a_step_that_is_more_than_langevins_is_called_at_every_step(kind, compiled, monkeypatch):
    monkeypatch.setattr("holonom._training.stepper.compile_step", lambda function, options: function)
    ensemble, _, batches, _ = setting("sgd", network=make_tiny)
    optimizer = (Counting if kind == "overridden step" else Langevin)(ensemble.parameters(), 0.1)
    seen = []
    if kind == "hook":
        optimizer.register_step_post_hook(lambda *_: seen.append(0))
    optimizer.param_groups[0]["fuse"] = False
    train(ensemble, optimizer, loss, batches, 7, evaluate=lambda e: {}, compiled=compiled)
    assert (optimizer.count if kind == "overridden step" else len(seen)) == 7


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


def test_what_is_to_be_compiled_must_be_known():
    with pytest.raises(ValueError, match=r"compiled must be True, False or \"gradients\", got 'gradient'"):
        run("sgd", compiled="gradient")


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"evaluations": 0}, ValueError, "evaluations must be a whole number of at least 1, got 0"),  # would not train
        ({"steps": 2.5}, ValueError, "steps must be a whole number of at least 0, got 2.5"),
        ({"steps": -1}, ValueError, "steps must be a whole number"),
        ({"ensemble": nn.Linear(2, 1)}, TypeError, r"trains an Ensemble, got Linear.*from_models\(\[model\]\)"),
        ({"evaluate": lambda e: None}, TypeError, "evaluate.* must return a dict of tensors.*got None"),
        ({"evaluate": lambda e: {"loss": 1.0}}, TypeError, "must return a dict of tensors"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_the_first_step(changed, error, said):
    ensemble, optimizer, batches, _ = setting("sgd", network=make_tiny)
    before = ensemble.weight.detach().clone()
    options = {"ensemble": ensemble, "steps": 4, "evaluate": lambda e: {}, "compiled": False, **changed}
    with pytest.raises(error, match=said):
        train(optimizer=optimizer, loss=loss, batches=batches, **options)
    assert torch.equal(ensemble.weight, before)


def test_seeds_of_batches_are_whole_numbers():
    x, y = torch.zeros(4, 2), torch.zeros(4)
    for seeds in (0, torch.tensor([1.0])):
        with pytest.raises(EnsembleError, match=r"seeds are ensemble\.seeds, or one int64"):
            Shuffled(x, y, 2, seeds)


def test_a_checkpoint_may_be_named_by_text(tmp_path):
    ensemble, optimizer, batches, _ = setting("sgd", network=make_tiny)
    path = str(tmp_path / "run.pt")
    train(ensemble, optimizer, loss, batches, 2, evaluate=lambda e: {}, compiled=False, checkpoint=path)
    assert (tmp_path / "run.pt").exists()
