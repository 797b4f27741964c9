"""Captured training on a GPU: the same run as on the CPU, to rounding, and resumable bit for bit."""

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from holonom import Ensemble, Langevin, presets
from holonom._training import graphs
from holonom.batches import Shuffled
from holonom.training import train

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:weights that did not satisfy"),
]
STEPS = 24
OPTIMIZERS = {
    "sgd": lambda e: torch.optim.SGD(e.parameters(), 0.1, momentum=0.9),
    "adam": lambda e: torch.optim.Adam(e.parameters(), 0.01, capturable=e.seeds.is_cuda),
    "c_cola_od": lambda e: presets.c_cola_od(e, 0.05, 1.0, temperature=1e-3),
    "o_cola_ud": lambda e: presets.o_cola_ud(e, 0.05, layers="all", temperature=1e-3),
    "adlala": presets.adlala,
    "like_sgd": lambda e: Langevin.like_sgd(e.parameters(), 0.1, 0.9, temperature=1e-4, seed=e.seeds),
    "numbers of the host": lambda e: Langevin(
        e.parameters(),
        torch.linspace(0.05, 0.1, 3),
        scheme="BACDEDCAB",
        temperature=torch.logspace(-4, -2, 3),
        seed=e.seeds,
    ),
}


def loss(output, target):
    return binary_cross_entropy_with_logits(output.squeeze(-1), target)


def run(optimizer, device, replicas=3, **options):
    ensemble = Ensemble(
        lambda: nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)),
        replicas,
        seed=0,
    ).to(device)
    x = torch.randn(replicas, 20, 2, generator=torch.Generator().manual_seed(0)).to(device)
    batches = Shuffled(x, (x[..., 0] > 0).float(), 4, ensemble.seeds, own_data=True)
    chosen = OPTIMIZERS[optimizer](ensemble)
    looks = options.pop("evaluate", lambda e: {"mean": e(x, shared=False).mean((1, 2))})
    history = train(ensemble, chosen, loss, batches, STEPS, evaluate=looks, evaluations=3, **options)
    assert all(value.device.type == "cpu" for values in history.values.values() for value in values)
    return {name: value.cpu() for name, value in ensemble.state_dict().items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_captured_run_equals_the_cpu_run(optimizer):
    here, there = run(optimizer, "cpu", compiled=False), run(optimizer, "cuda", compiled=False)
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=2e-3, atol=2e-4, msg=f"{name}: {there[name]} != {value}")


@pytest.mark.parametrize("optimizer", ["adam", "adlala", "c_cola_od"])
def test_captured_run_resumes_bit_equal(optimizer, tmp_path):
    whole = run(optimizer, "cuda", compiled=False)
    calls = []

    def killed(ensemble):
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        run(optimizer, "cuda", compiled=False, checkpoint=tmp_path / "run.pt", evaluate=killed)
    resumed = run(optimizer, "cuda", compiled=False, checkpoint=tmp_path / "run.pt", evaluate=lambda e: {})
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


def test_a_finished_run_is_read_from_its_checkpoint(tmp_path):
    whole = run("adam", "cuda", compiled=False, checkpoint=tmp_path / "run.pt")
    again = run("adam", "cuda", compiled=False, checkpoint=tmp_path / "run.pt")
    assert all(torch.equal(value, again[name]) for name, value in whole.items())


@pytest.mark.parametrize("replicas", [1, 3])
def test_compiled_and_captured_run_equals_the_cpu_run(replicas):
    here = run("c_cola_od", "cpu", replicas, compiled=False)
    there = run("c_cola_od", "cuda", replicas, compiled=True)
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=2e-3, atol=2e-4, msg=f"{name}: {there[name]} != {value}")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_graphs_of_many_steps_equal_graphs_of_one(optimizer, compiled, monkeypatch):
    found = []
    for growing in (10**9, 0):
        monkeypatch.setattr(graphs, "GROW_AFTER", growing)
        found.append(run(optimizer, "cuda", compiled=compiled))
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


@pytest.mark.parametrize("optimizer", ["sgd", "adlala", "c_cola_od"])
def test_a_compiled_run_resumes_bit_equal(optimizer, tmp_path):
    whole = run(optimizer, "cuda", compiled=True)
    calls = []

    def killed(ensemble):
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        run(optimizer, "cuda", compiled=True, checkpoint=tmp_path / "run.pt", evaluate=killed)
    resumed = run(optimizer, "cuda", compiled=True, checkpoint=tmp_path / "run.pt", evaluate=lambda e: {})
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


def test_a_compiled_and_captured_run_follows_a_schedule():
    """The step compiled with the first rate is dropped; what takes its place is compiled before it is recorded."""
    found = []
    for device, compiled in (("cpu", False), ("cuda", True)):
        ensemble = Ensemble(lambda: nn.Linear(2, 1), 3, seed=0).to(device)
        optimizer = presets.c_cola_od(ensemble, 0.1, 1.0)
        x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)).to(device)
        batches = Shuffled(x, x[:, :1], 2, ensemble.seeds)

        def after(epoch, optimizer=optimizer):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / epoch

        train(ensemble, optimizer, mse_loss, batches, 50, evaluate=lambda e: {}, after_epoch=after, compiled=compiled)
        found.append({name: p.detach().cpu() for name, p in ensemble.named_parameters()})
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=2e-3, atol=2e-4, msg=name)


class Masked(nn.Module):
    """Weights whose gradients are a dropout mask."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(200))

    def forward(self, x):
        return nn.functional.dropout(self.weight, 0.5, self.training).sum() * x.mean()


@pytest.mark.parametrize("compiled", [False, "gradients", True])
def test_every_replay_draws_new_dropout_masks(compiled):
    ensemble = Ensemble(Masked, 2, seed=0).to("cuda")
    batches = Shuffled(torch.ones(8, 1, device="cuda"), torch.zeros(8, device="cuda"), 1, ensemble.seeds)
    optimizer = torch.optim.SGD(ensemble.parameters(), 1.0)
    train(ensemble, optimizer, lambda output, _: output, batches, STEPS, evaluate=lambda e: {}, compiled=compiled)
    kept = -next(ensemble.parameters()).detach().cpu() / 2  # how often each weight was not dropped
    assert ((kept > 0.1 * STEPS) & (kept < 0.9 * STEPS)).all(), "half of the time, not always or never"
    assert not torch.equal(kept[0], kept[1]), "replicas have masks of their own"


@pytest.mark.parametrize("compiled", [False, "gradients"])
def test_runs_with_dropout_resume_bit_equal(compiled, tmp_path):
    def trained(evaluate, checkpoint=None):
        ensemble = Ensemble(lambda: nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 1)), 2, seed=0).to(
            "cuda"
        )
        x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)).cuda()
        batches = Shuffled(x, (x[:, 0] > 0).float(), 4, ensemble.seeds)
        optimizer = torch.optim.SGD(ensemble.parameters(), 0.1, momentum=0.9)
        options = {"evaluations": 3, "compiled": compiled, "checkpoint": checkpoint}
        train(ensemble, optimizer, loss, batches, STEPS, evaluate=evaluate, **options)
        return ensemble.state_dict()

    looks = []

    def killed(ensemble):
        looks.append(0)
        if len(looks) == 3:
            raise KeyboardInterrupt
        return {}

    whole = trained(lambda ensemble: {})
    with pytest.raises(KeyboardInterrupt):
        trained(killed, tmp_path / "run.pt")
    resumed = trained(lambda ensemble: {}, tmp_path / "run.pt")
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
