"""Interpolation against the loop it replaces, and against NumPy."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from holonom.ensemble import Ensemble
from holonom.landscape import cost, error_rate, interpolate, over, trajectory

POINTS = 7


def perceptron():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.last(self.drop(self.second(x).flatten(1)))


class Tied(nn.Module):
    """One matrix used twice."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.decoder = nn.Linear(6, 5, bias=False)
        self.decoder.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.decoder((x * self.scale).mean(1))


def images(n=20):
    return torch.randn(n, 2, 4, 4, generator=torch.Generator().manual_seed(3))


CASES = {
    "perceptron": (perceptron, torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), 4),
    "convolutional": (Convolutional, images(), 4),
    "tied": (Tied, torch.randint(5, (20, 3), generator=torch.Generator().manual_seed(2)), 5),
}


def build(make, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    return model


def by_hand(model, start, end, alphas, x, y):
    """The usual script: load a mixed state, evaluate, repeat."""
    student = copy.deepcopy(model).eval()
    rows = []
    for alpha in alphas.tolist():
        mixed = {k: (1 - alpha) * start[k] + alpha * end[k] if v.is_floating_point() else v for k, v in end.items()}
        student.load_state_dict(mixed)
        with torch.no_grad():
            out = student(x)
        rows.append([float(F.cross_entropy(out, y)), float((out.argmax(1) != y).float().mean())])
    return torch.tensor(rows, dtype=torch.float64).T


@pytest.fixture(params=CASES)
def case(request):
    make, x, classes = CASES[request.param]
    model, start, end = build(make, 0), build(make, 1).state_dict(), build(make, 2).state_dict()
    y = torch.arange(len(x)) % classes
    return model, start, end, x, y


METRICS = {"loss": F.cross_entropy, "error": error_rate}


@pytest.mark.parametrize("options", [{}, {"chunk": 2, "batched": True}, {"batched": False}, {"fast": False}], ids=str)
def test_a_path_equals_the_usual_loop(case, options):
    model, start, end, x, y = case
    path = interpolate(model, start, end, over((x, y), METRICS, batch_size=7), POINTS, **options)
    assert path.metrics == ("loss", "error")
    assert path.values.shape == (2, POINTS)
    torch.testing.assert_close(path.values, by_hand(model, start, end, path.alphas, x, y), rtol=1e-5, atol=1e-6)


def test_the_model_is_handed_back_as_it_was(case):
    model, start, end, x, y = case
    model.train()
    next(model.children()).eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    random = torch.random.get_rng_state()
    parameters = [id(p) for p in model.parameters()]

    def explode(outputs, targets):
        raise ArithmeticError("boom")

    for batched in (True, False):
        interpolate(model, start, end, over((x, y), METRICS), POINTS, batched=batched, statistics="recompute")
        with pytest.raises(ArithmeticError):
            interpolate(model, start, end, over((x, y), explode), POINTS, batched=batched, statistics="recompute")
    assert modes == [module.training for module in model.modules()]
    assert parameters == [id(p) for p in model.parameters()]
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(random, torch.random.get_rng_state())


def test_a_perceptron_in_float64_equals_numpy():
    model, start, end = (build(perceptron, s).double() for s in (0, 1, 2))
    x = torch.randn(11, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(11) % 4
    path = interpolate(model, start, end, over((x, y), F.cross_entropy), POINTS)
    first, last = ({k: v.numpy() for k, v in m.state_dict().items()} for m in (start, end))
    for alpha, value in zip(path.alphas.tolist(), path.values[0].tolist(), strict=True):
        w = {k: (1 - alpha) * first[k] + alpha * last[k] for k in first}
        h = np.maximum(x.numpy() @ w["0.weight"].T + w["0.bias"], 0)
        h = np.tanh(h @ w["2.weight"].T + w["2.bias"])
        logits = h @ w["4.weight"].T + w["4.bias"]
        lse = np.log(np.exp(logits).sum(1))
        assert value == pytest.approx(float((lse - logits[np.arange(11), y.numpy()]).mean()), rel=1e-12)


def test_the_ends_are_met_exactly(case):
    model, start, end, x, y = case
    path = interpolate(model, start, end, over((x, y), F.cross_entropy), POINTS)
    for alpha, state in ((0.0, start), (1.0, end)):
        there = path.state(alpha)
        assert all(torch.equal(there[name], state[name]) for name in there if state[name].is_floating_point())


def test_a_first_layer_costs_two_products_however_many_points():
    """784 → 16 → 4: nearly all work is the first layer's, which is linear in its weights."""
    from torch.utils.flop_counter import FlopCounterMode

    def wide():
        return nn.Sequential(nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 4))

    model, start, end = (build(wide, s) for s in (0, 1, 2))
    x, y = torch.randn(10, 784), torch.arange(10) % 4
    work = {}
    for batched in (True, False):
        with FlopCounterMode(display=False) as counter:
            interpolate(model, start, end, over((x, y), F.cross_entropy, batch_size=10), 51, batched=batched, chunk=51)
        work[batched] = counter.get_total_flops()
    first, second = 2 * 10 * 784 * 16, 2 * 10 * 16 * 4
    checked = first + second  # the model itself, to compare with the captured graph
    assert work[False] == 51 * (first + second) + checked
    assert work[True] == 2 * first + 51 * second + 2 * checked  # the sums of anchors are no products


def test_a_loader_is_read_once():
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    x, y = torch.randn(20, 3), torch.arange(20) % 4
    reads = []

    class Counted(TensorDataset):
        def __getitem__(self, index):
            reads.append(index)
            return super().__getitem__(index)

    loader = DataLoader(Counted(x, y), 6)
    path = interpolate(model, start, end, over(loader, METRICS), POINTS, chunk=2)
    assert sorted(reads) == list(range(20))
    whole = interpolate(model, start, end, over((x, y), METRICS), POINTS)
    torch.testing.assert_close(path.values, whole.values, rtol=1e-6, atol=1e-7)
    as_set = interpolate(model, start, end, over(TensorDataset(x, y), METRICS, batch_size=9), POINTS)
    torch.testing.assert_close(as_set.values, whole.values, rtol=1e-6, atol=1e-7)


def test_a_function_of_the_model_is_an_evaluation():
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    x, y = torch.randn(20, 3), torch.arange(20) % 4
    whole = interpolate(model, start, end, over((x, y), METRICS), POINTS)
    single = interpolate(model, start, end, lambda m: F.cross_entropy(m(x), y), POINTS)
    torch.testing.assert_close(single["value"], whole["loss"], rtol=1e-5, atol=0)
    both = interpolate(
        model, start, end, lambda m: {"loss": F.cross_entropy(m(x), y), "error": error_rate(m(x), y)}, POINTS
    )
    torch.testing.assert_close(both.values, whole.values, rtol=1e-5, atol=1e-7)


def test_what_cannot_be_batched_is_done_one_by_one_with_a_warning():
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    x, y = torch.randn(20, 3), torch.arange(20) % 4

    def stubborn(outputs, targets):
        return torch.tensor(F.cross_entropy(outputs, targets).item())

    with pytest.warns(UserWarning, match="one by one"):
        path = interpolate(model, start, end, over((x, y), stubborn), POINTS)
    whole = interpolate(model, start, end, over((x, y), F.cross_entropy), POINTS)
    torch.testing.assert_close(path.values, whole.values, rtol=1e-5, atol=0)
    with pytest.raises(RuntimeError, match="vmap"):
        interpolate(model, start, end, over((x, y), stubborn), POINTS, batched=True)


def test_a_custom_autograd_function():
    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x):
            class Product(torch.autograd.Function):
                generate_vmap_rule = True

                @staticmethod
                def forward(x, w):
                    return x @ w.mT

                @staticmethod
                def setup_context(ctx, inputs, output):
                    pass

            return Product.apply(x, self.layer.weight) + self.layer.bias

    x, y = torch.randn(20, 3), torch.arange(20) % 4
    model, start, end = (build(Custom, s) for s in (0, 1, 2))
    path = interpolate(model, start, end, over((x, y), F.cross_entropy), POINTS)
    expected = by_hand(model, start.state_dict(), end.state_dict(), path.alphas, x, y)
    torch.testing.assert_close(path["cross_entropy"], expected[0], rtol=1e-5, atol=1e-6)


def test_other_batches_need_a_forward():
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    x, y = torch.randn(20, 3), torch.arange(20) % 4
    batches = [{"features": x[:8], "label": y[:8]}, {"features": x[8:], "label": y[8:]}]
    path = interpolate(
        model, start, end,
        over(batches, F.cross_entropy, forward=lambda m, batch: (m(batch["features"]), batch["label"])), POINTS,
    )  # fmt: skip
    whole = interpolate(model, start, end, over((x, y), F.cross_entropy), POINTS)
    torch.testing.assert_close(path.values, whole.values, rtol=1e-5, atol=0)
    with pytest.raises(TypeError, match="forward"):
        interpolate(model, start, end, over(batches, F.cross_entropy), POINTS)


def test_a_value_for_each_example_is_averaged():
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    x, y = torch.randn(20, 3), torch.arange(20) % 4

    def each(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none")

    path = interpolate(model, start, end, over((x, y), {"each": each, "mean": F.cross_entropy}, batch_size=7), POINTS)
    torch.testing.assert_close(path["each"], path["mean"], rtol=1e-5, atol=0)


def test_a_trajectory_passes_through_its_states():
    states = [build(perceptron, s).state_dict() for s in range(4)]
    model = build(perceptron, 9)
    x, y = torch.randn(20, 3), torch.arange(20) % 4
    evaluate = over((x, y), F.cross_entropy)
    path = trajectory(model, states, evaluate, between=4)
    assert path.alphas.tolist() == pytest.approx([i / 4 for i in range(13)])
    leg = interpolate(model, states[1], states[2], evaluate, 5)
    torch.testing.assert_close(path.values[:, 4:9], leg.values, rtol=1e-5, atol=0)
    assert trajectory(model, states, evaluate).values.shape == (1, 4)
    assert all(torch.equal(path.state(2.0)[k], states[2][k]) for k in states[2])


def test_the_cost_is_estimated():
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    x, y = torch.randn(40, 3), torch.arange(40) % 4
    found = cost(model, start, end, over((x, y), F.cross_entropy, batch_size=8), 51)
    assert found.points == 51
    assert found.batches == 5
    assert found.seconds == pytest.approx(5 * found.seconds_per_batch)
    assert "51 points" in str(found)


def test_progress_shows_the_points(capsys):
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    x, y = torch.randn(40, 3), torch.arange(40) % 4
    interpolate(model, start, end, over((x, y), F.cross_entropy, batch_size=8), 51, progress=True)
    assert "255/255" in capsys.readouterr().err


def test_a_plot_shows_mean_band_and_barrier():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    ensemble, other = (Ensemble(perceptron, 3, seed=s) for s in (5, 6))
    x, y = torch.randn(20, 3), torch.arange(20) % 4
    axes = interpolate(ensemble, ensemble, other, over((x, y), F.cross_entropy), POINTS).plot()
    assert axes.get_xlabel() == "α"
    assert len(axes.collections) == 1
