"""What landscapes refuse, and in which words."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from holonom import landscape
from holonom.landscape import interpolate, over

POINTS = 7


def perceptron():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def build(make, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def lost(state, name):
    return {k: v for k, v in state.items() if k != name}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s: lost(s, "2.bias"), ValueError, "misses 2.bias"),
        (lambda s: {**s, "9.weight": torch.zeros(1)}, ValueError, "has 9.weight besides"),
        (lambda s: {**s, "0.weight": torch.zeros(8, 4)}, ValueError, r"0.weight is \(8, 4\) instead of \(8, 3\)"),
        (lambda s: {**s, "0.weight": s["0.weight"] * math.nan}, ValueError, "NaN or infinity in 0.weight"),
        (lambda s: 3, TypeError, "state_dict or a module"),
        (lambda s: {k: v[None] for k, v in s.items()}, ValueError, "other shapes"),
    ],
)
@pytest.mark.parametrize("which", ["start", "end"])
def test_a_state_of_another_model_is_refused(change, error, message, which):
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    states = {"start": start.state_dict(), "end": end.state_dict()}
    states[which] = change(states[which])
    with pytest.raises(error, match=message) as caught:
        interpolate(model, states["start"], states["end"], lambda m: m(torch.zeros(1, 3)).sum(), POINTS)
    assert which in str(caught.value)


@pytest.mark.parametrize(
    ("evaluate", "error", "message"),
    [
        (lambda m: m(torch.zeros(2, 3)), ValueError, "one number"),
        (lambda m: 3.0, ValueError, "one number"),
        (lambda m: {}, ValueError, "no value"),
        (17, TypeError, "evaluate must be"),
        (over((torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)), lambda o, t: o), ValueError, "returned shape"),
        (over((torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)), lambda o, t: 0.5), ValueError, "returned float"),
        (over((torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)), F.cross_entropy), ValueError, "data is empty"),
        (over([], F.cross_entropy), ValueError, "data is empty"),
        (over(DataLoader(TensorDataset(torch.zeros(0, 3))), F.cross_entropy), ValueError, "data is empty"),
    ],
)
@pytest.mark.parametrize("batched", [None, False])
def test_an_evaluation_that_cannot_be_is_refused(evaluate, error, message, batched):
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    with pytest.raises(error, match=message):
        interpolate(model, start, end, evaluate, POINTS, batched=batched)


def test_data_that_is_no_data_is_refused():
    x, y = torch.zeros(4, 3), torch.zeros(4)
    with pytest.raises(TypeError, match="iterator"):
        over(iter([(x, y)]), F.cross_entropy)
    with pytest.raises(TypeError, match="must be a loader"):
        over(5, F.cross_entropy)
    with pytest.raises(ValueError, match="differ in length"):
        over((x, y[:3]), F.cross_entropy)
    with pytest.raises(TypeError, match="metrics must be"):
        over((x, y), {"loss": 3})
    with pytest.raises(ValueError, match="batch_size"):
        over((x, y), F.cross_entropy, batch_size=0)


def test_nan_on_the_path_is_an_error_that_says_where():
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    zeros = {name: torch.zeros_like(x) for name, x in start.state_dict().items()}

    def logarithm(m):
        return (0.1 - m(torch.zeros(1, 3)).square().sum()).log()

    with pytest.raises(FloatingPointError, match=r"value is NaN or infinite at \d of 7 points, first at α = 0\.[1-9]"):
        interpolate(model, zeros, end, logarithm, POINTS)
    kept = interpolate(model, zeros, end, logarithm, POINTS, nonfinite="keep")
    assert bool(kept.values[0, 0].isfinite())
    assert bool(kept.values[0, -1].isnan())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alphas": 2}, "at least 3"),
        ({"alphas": [0.0, 0.5, 0.2]}, "increasing"),
        ({"chunk": 0}, "chunk"),
        ({"statistics": "guess"}, "statistics"),
        ({"nonfinite": "hide"}, "nonfinite"),
        ({"along": "arc"}, "along"),
        ({"along": "geodesic"}, "needs constraints"),
        ({"replicas": 0}, "replicas"),
        ({"statistics": "recompute"}, "calibration"),
    ],
)
def test_options_are_checked(options, message):
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    with pytest.raises(ValueError, match=message):
        interpolate(model, start, end, lambda m: m(torch.zeros(1, 3)).sum(), **options)


def test_own_data_needs_replicas():
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    with pytest.raises(ValueError, match="no replicas"):
        interpolate(model, start, end, over((torch.zeros(2, 4, 3), torch.zeros(2, 4)), F.cross_entropy, shared=False))


def test_an_unknown_metric_is_named():
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    path = interpolate(model, start, end, lambda m: m(torch.zeros(1, 3)).sum(), POINTS)
    with pytest.raises(KeyError, match="accuracy"):
        path["accuracy"]


def test_old_names_say_what_to_write_instead():
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    path = interpolate(model, start, end, lambda m: m(torch.zeros(1, 3)).square().sum(), POINTS)
    with pytest.warns(DeprecationWarning, match=r"Path\.profile\(\)"):
        assert path.shape == path.profile()
    with pytest.warns(DeprecationWarning, match=r"Path\.profile\(\)"):
        assert path.classify(tolerance=0.5) == path.profile(tolerance=0.5)
    with pytest.warns(DeprecationWarning, match=r"Path\.profiles\(\)"):
        assert path.shapes == path.profiles()
    with pytest.warns(DeprecationWarning, match="BarrierProfile"):
        assert landscape.Shape is landscape.BarrierProfile
    with pytest.raises(AttributeError, match="Form"):
        landscape.Form  # noqa: B018
