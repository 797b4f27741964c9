"""Paths of ensembles, in half precision, and with recomputed batch-norm statistics."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from holonom.ensemble import Ensemble
from holonom.landscape import interpolate, over

from .test_landscape_paths import METRICS, POINTS, Convolutional, build, images, perceptron


@pytest.mark.parametrize("options", [{"batched": True}, {"batched": False}, {"fast": False}], ids=str)
def test_statistics_are_recomputed_at_every_point(options):
    model, start, end = (build(Convolutional, s) for s in (0, 1, 2))
    x, y = images(24), torch.arange(24) % 4
    path = interpolate(
        model, start, end, over((x, y), F.cross_entropy, batch_size=8), POINTS, statistics="recompute",
        chunk=3, calibration=(x[:16], y[:16]), **options,
    )  # fmt: skip
    first, last = start.state_dict(), end.state_dict()
    for alpha, value in zip(path.alphas.tolist(), path.values[0].tolist(), strict=True):
        student = build(Convolutional, 0).eval()
        student.load_state_dict(
            {k: (1 - alpha) * first[k] + alpha * v if v.is_floating_point() else v for k, v in last.items()}
        )
        with torch.no_grad():
            hidden = student.first(x[:16])
            student.norm.running_mean.copy_(hidden.mean((0, 2, 3)))
            student.norm.running_var.copy_(hidden.var((0, 2, 3)))
            assert value == pytest.approx(float(F.cross_entropy(student(x), y)), rel=1e-5)
    mixed = interpolate(model, start, end, over((x, y), F.cross_entropy), POINTS)
    assert not torch.allclose(mixed.values, path.values)


def test_statistics_of_several_batches_are_averaged():
    model, start, end = (build(Convolutional, s) for s in (0, 1, 2))
    x, y = images(24), torch.arange(24) % 4
    evaluate = over((x, y), F.cross_entropy, batch_size=8)
    path = interpolate(model, start, end, evaluate, POINTS, statistics="recompute")
    student = build(Convolutional, 0).eval()
    student.load_state_dict(end.state_dict())
    student.norm.train().momentum = None
    student.norm.reset_running_stats()
    with torch.no_grad():
        for piece in x.split(8):
            student(piece)
        value = float(F.cross_entropy(student.eval()(x), y))
    assert float(path.values[0, -1]) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (perceptron, {"batched": True}),
        (perceptron, {"fast": False}),
        (Convolutional, {"batched": True, "statistics": "recompute"}),
        (Convolutional, {"batched": False, "statistics": "recompute"}),
        (Convolutional, {"batched": False}),
    ],
)
def test_an_ensemble_is_its_replicas(make, options):
    options = {**options, "chunk": 3}
    ensemble = Ensemble(lambda: build_here(make), 3, seed=5)
    other = Ensemble(lambda: build_here(make), 3, seed=6)
    x = torch.randn(20, 3) if make is perceptron else images()
    y = torch.arange(20) % 4
    evaluate = over((x, y), METRICS, batch_size=8)
    path = interpolate(ensemble, ensemble.state_dict(), other.state_dict(), evaluate, POINTS, **options)
    assert path.values.shape == (2, 3, POINTS)
    for replica in range(3):
        one = interpolate(ensemble.alone(0), ensemble.alone(replica), other.alone(replica), evaluate, POINTS, **options)
        torch.testing.assert_close(path.values[:, replica], one.values, rtol=1e-4, atol=1e-5)
        assert path.profiles()[replica] == one.profile()
    by_argument = interpolate(
        ensemble.alone(0), ensemble.state_dict(), other.state_dict(), evaluate, POINTS, replicas=3, **options
    )
    torch.testing.assert_close(by_argument.values, path.values)


def build_here(make):
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 2)
    return model


def test_replicas_may_have_data_of_their_own():
    ensemble, other = (Ensemble(perceptron, 3, seed=s) for s in (5, 6))
    x, y = torch.randn(3, 20, 3), torch.randint(4, (3, 20))
    for batched in (None, False):
        path = interpolate(
            ensemble,
            ensemble,
            other,
            over((x, y), F.cross_entropy, shared=False, batch_size=8),
            POINTS,
            batched=batched,
        )
        for i in range(3):
            one = interpolate(
                ensemble.alone(i), ensemble.alone(i), other.alone(i), over((x[i], y[i]), F.cross_entropy), POINTS
            )
            torch.testing.assert_close(path.values[0, i], one.values[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("make", [perceptron, Convolutional])
def test_half_precision_states_and_autocast(make, batched):
    model, start, end = (build(make, s) for s in (0, 1, 2))
    y = torch.arange(20) % 4
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)) if make is perceptron else images()
    exact = interpolate(model, start, end, over((x, y), F.cross_entropy), POINTS, batched=batched)
    cast = interpolate(
        model, start, end, over((x, y), F.cross_entropy), POINTS, autocast=torch.bfloat16, batched=batched
    )
    assert 0 < float((exact.values - cast.values).abs().max()) < 0.05
    halves = [copy.deepcopy(m).bfloat16() for m in (model, start, end)]
    rough = interpolate(*halves, over((x.bfloat16(), y), F.cross_entropy), POINTS, batched=batched)
    torch.testing.assert_close(rough.values, exact.values, atol=0.05, rtol=0.05)
    for path in (cast, rough):  # the loss itself is not rounded, or small barriers would be its steps
        assert (path.values != path.values.bfloat16().double()).all()
