"""Posteriors of models on a GPU: the chains of a CPU, and their exact moments."""

import pytest
import torch
from torch import nn

from holonom.constraints import Orthogonal, Sphere
from holonom.sampling import learning_coefficient, sample

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("ignore:the chains have not mixed", "ignore:the noise of the minibatches"),
]


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y = normals(40, 3), normals(40, 1, seed=1)


def model_on(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).to(device)


def run(device, **options):
    settings = {"steps": 24, "burn_in": 8, "lr": 0.02, "chains": 3, "seed": 4, "progress": False, **options}
    return sample(model_on(device), nn.MSELoss(), (X.to(device), Y.to(device)), **settings)


SPACES = {"free": None, "sphere": Sphere(1.0, slack=False), "orthogonal": Orthogonal()}
ON_MANIFOLDS = ("baoab", "adl", "mala", "hmc")
CASES = [(k, "free") for k in ("sgld", "cyclical")] + [(k, space) for k in ON_MANIFOLDS for space in SPACES]


@pytest.mark.parametrize(("kernel", "space"), CASES)
def test_chains_on_a_gpu_are_those_of_a_cpu(kernel, space):
    constraint = SPACES[space]
    options = {"kernel": kernel, "constraints": None if constraint is None else {"0.weight": constraint}}
    here, there = run("cpu", **options), run("cuda", **options)
    for name, draws in there.draws.items():
        assert draws.device.type == "cpu"
        torch.testing.assert_close(draws, here.draws[name], rtol=1e-3, atol=1e-4)
    x = normals(5, 3, seed=2)
    torch.testing.assert_close(there.predict(x.cuda()).mean.cpu(), here.predict(x).mean, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("options", [{"batch_size": 8}, {"lr": None}, {"batch_size": 8, "lr": None}], ids=str)
def test_minibatches_and_a_chosen_step_on_a_gpu(options):
    posterior = run("cuda", **{"steps": 200, "burn_in": 100, **options})
    assert all(x.isfinite().all() for x in posterior.draws.values())
    assert posterior.lr > 0


@pytest.mark.parametrize("kernel", ["baoab", "hmc"])
def test_priors_on_a_gpu_are_numbers_tensors_of_the_host_and_functions(kernel, tmp_path):
    """A flat prior is a number without a device, and a prior's tensors may lie on the host."""
    tables = {"0.weight": (torch.zeros(3, 3), torch.ones(3, 3)), "rest": (0.5, torch.tensor(2.0))}
    for number, prior in enumerate([tables, lambda state: 0.0, lambda state: -state["0.weight"].square().sum()]):
        options = {"kernel": kernel, "prior": prior, "init": "model"}
        here, there = run("cpu", **options), run("cuda", out=tmp_path / f"{kernel}{number}", **options)
        for name, draws in there.draws.items():
            torch.testing.assert_close(draws, here.draws[name], rtol=1e-3, atol=1e-4)


def test_a_run_on_a_gpu_repeats_bit_for_bit(tmp_path):
    first, second = (run("cuda", out=tmp_path / name, steps=40) for name in ("first", "second"))
    read = run("cuda", out=tmp_path / "second", steps=40)  # finished: nothing is run
    for name, x in first.draws.items():
        assert torch.equal(x, second.draws[name])
        assert torch.equal(x, read.draws[name])


def test_linear_regression_on_a_gpu_has_its_exact_moments():
    x, y = normals(50, 2, seed=3).cuda(), normals(50, 1, seed=4).cuda()
    model = nn.Linear(2, 1, bias=False).cuda()
    posterior = sample(
        model, lambda output, target: 0.5 * (output - target).square().mean(), (x, y), steps=400, chains=256,
        kernel="hmc", seed=0, progress=False,
    )  # fmt: skip
    covariance = torch.linalg.inv(x.T.double() @ x.double() + torch.eye(2, device="cuda"))
    mean = (covariance @ x.T.double() @ y.double()).flatten().cpu()
    draws = posterior.draws["weight"].double().reshape(-1, 2)
    torch.testing.assert_close(draws.mean(0), mean, rtol=0.0, atol=0.01)
    torch.testing.assert_close(draws.T.cov(), covariance.cpu(), rtol=0.05, atol=5e-4)


def test_the_learning_coefficient_on_a_gpu_is_that_of_a_cpu():
    found = [
        learning_coefficient(
            model_on(device), nn.MSELoss(), (X.to(device), Y.to(device)), restoring=50.0, steps=40, chains=2, lr=0.01,
            seed=1, progress=False,
        )
        for device in ("cpu", "cuda")
    ]  # fmt: skip
    assert float(found[1].value) == pytest.approx(float(found[0].value), rel=1e-2)
