"""Landscapes on a GPU: the CPU's values, states from either device, the model handed back where it was."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from holonom import Ensemble
from holonom.landscape import error_rate, interpolate, layerwise, over, surface
from holonom.metrics import Hessian, boundary_curvature
from holonom.models import TransformerLM, mlp, tiny_resnet

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = "cuda"
METRICS = {"loss": cross_entropy, "error": error_rate}


def words(output, target):
    return cross_entropy(output.flatten(0, -2), target.flatten())


def images(*shape):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(60, *shape, generator=draw), torch.randint(4, (60,), generator=draw)


def text():
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randint(11, (40, 6), generator=draw) for _ in range(2))


CASES = {
    "perceptron": (lambda: mlp([5, 16, 16, 4]), lambda: images(5), METRICS),
    "residual": (lambda: tiny_resnet(4, 1), lambda: images(1, 12, 12), METRICS),
    "transformer": (lambda: TransformerLM(11, 8, 2, 16), text, {"loss": words}),
}


@pytest.fixture(autouse=True)
def full_precision():
    """TF32 would be the larger difference."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def setting(case, device):
    make, data, metrics = CASES[case]
    torch.manual_seed(0)
    model, end = make().to(device), make().to(device)
    start = {name: x.clone() for name, x in model.state_dict().items()}
    return model, start, end.state_dict(), over(tuple(x.to(device) for x in data()), metrics)


@pytest.mark.parametrize("statistics", ["interpolate", "recompute"])
@pytest.mark.parametrize("case", CASES)
def test_a_path_is_the_cpus(case, statistics):
    here, there = (
        interpolate(*setting(case, device), 5, progress=False, statistics=statistics) for device in ("cpu", DEVICE)
    )
    assert there.values.device.type == "cpu"
    torch.testing.assert_close(there.values, here.values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_blocks_and_surfaces_are_the_cpus(case):
    for measure in (
        lambda model, start, end, evaluate: layerwise(model, start, end, evaluate, alphas=3, progress=False),
        lambda model, start, end, evaluate: {
            "surface": surface(model, start, (end, {n: 1.5 * x for n, x in end.items()}), evaluate, grid=3)
        },
    ):
        here, there = measure(*setting(case, "cpu")), measure(*setting(case, DEVICE))
        assert list(here) == list(there)
        for name, values in here.items():
            torch.testing.assert_close(there[name].values, values.values, rtol=1e-4, atol=1e-5)


def test_states_may_lie_on_the_cpu():
    model, start, end, evaluate = setting("residual", DEVICE)
    expected = interpolate(model, start, end, evaluate, 4, progress=False).values
    elsewhere = [{name: x.cpu() for name, x in state.items()} for state in (start, end)]
    found = interpolate(model, *elsewhere, evaluate, 4, progress=False).values
    torch.testing.assert_close(found, expected)
    assert all(p.is_cuda and torch.equal(p, start[name]) for name, p in model.named_parameters())


def test_an_ensemble_is_walked_at_once():
    data = tuple(x.to(DEVICE) for x in images(5))
    start, end = (Ensemble(lambda: mlp([5, 8, 4]), 3, seed).to(DEVICE) for seed in (0, 1))
    path = interpolate(start, start.state_dict(), end.state_dict(), over(data, METRICS), 4, progress=False)
    assert path.values.shape == (2, 3, 4)
    alone = [
        interpolate(a, a.state_dict(), b.state_dict(), over(data, METRICS), 4, progress=False).values
        for a, b in zip(start.unstack(), end.unstack(), strict=True)
    ]
    torch.testing.assert_close(path.values, torch.stack(alone, 1), rtol=1e-4, atol=1e-5)


def test_half_precision_is_near():
    model, start, end, evaluate = setting("residual", DEVICE)
    whole = interpolate(model, start, end, evaluate, 5, progress=False).values[0]
    half = interpolate(model, start, end, evaluate, 5, progress=False, autocast=torch.bfloat16).values[0]
    torch.testing.assert_close(half, whole, rtol=0.05, atol=0.02)


def test_curvature_and_hessian_are_the_cpus():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 1)).double()  # a boundary that bends everywhere
    x, y = torch.randn(50, 2, dtype=torch.float64), torch.rand(50, dtype=torch.float64)

    def loss(output, target):
        return (output.squeeze(-1) - target).square().mean()

    def on(device):
        model.to(device)
        curvatures = boundary_curvature(
            lambda points: torch.sigmoid(4 * model(points.double()).squeeze(-1)), (-1.5, 1.5), 200, device=device
        )
        hessian = Hessian(model, over((x.to(device), y.to(device)), loss))
        return float(np.median(curvatures)), float(hessian.eigenvalues(1)[0])

    assert on(DEVICE) == pytest.approx(on("cpu"), rel=1e-3)
