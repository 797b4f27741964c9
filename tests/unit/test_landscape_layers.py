"""Layer-wise paths (6.2), blocks, and optimizer groups from barriers (Table 6.2)."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from holonom.ensemble import Ensemble
from holonom.landscape import barrier_groups, blocks_of, error_rate, interpolate, layerwise, over

POINTS = 5


def perceptron():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


class SmallResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(Residual(4), Residual(4))
        self.layer2 = nn.Sequential(Residual(4))
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))


class SmallVGG(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
        self.classifier = nn.Linear(4, 4)


def build(make, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    return model


def images(n=12):
    return torch.randn(n, 2, 4, 4, generator=torch.Generator().manual_seed(3)), torch.arange(n) % 4


def by_hand(make, start, end, names, alphas, x, y):
    values = []
    for alpha in alphas.tolist():
        state = copy.deepcopy(end)
        for name in names:
            if end[name].is_floating_point():
                state[name] = (1 - alpha) * start[name] + alpha * end[name]
        student = make().eval()
        student.load_state_dict(state)
        with torch.no_grad():
            values.append(float(F.cross_entropy(student(x), y)))
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("batched", [None, True, False])
def test_one_block_moves_and_the_rest_is_trained(batched):
    model, start, end = build(SmallResNet, 0), build(SmallResNet, 1).state_dict(), build(SmallResNet, 2).state_dict()
    x, y = images()
    layers = layerwise(
        model, start, end, over((x, y), {"loss": F.cross_entropy, "error": error_rate}, batch_size=5), alphas=POINTS,
        batched=batched,
    )  # fmt: skip
    assert list(layers) == ["conv1", "layer1", "layer2", "fc"]
    for block, path in layers.items():
        expected = by_hand(SmallResNet, start, end, layers.blocks[block], path.alphas, x, y)
        torch.testing.assert_close(path["loss"], expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(path["loss"][-1], expected[-1], rtol=1e-5, atol=1e-6)


def test_statistics_can_move_by_themselves():
    model, start, end = build(SmallResNet, 0), build(SmallResNet, 1).state_dict(), build(SmallResNet, 2).state_dict()
    x, y = images()
    layers = layerwise(model, start, end, over((x, y), F.cross_entropy), alphas=POINTS, separate_statistics=True)
    assert list(layers) == [
        "conv1", "conv1 statistics", "layer1", "layer1 statistics", "layer2", "layer2 statistics", "fc",
    ]  # fmt: skip
    running = layers.blocks["layer1 statistics"]
    assert {name.rsplit(".", 1)[1] for name in running} == {"running_mean", "running_var", "num_batches_tracked"}
    for block in ("layer1", "layer1 statistics"):
        expected = by_hand(SmallResNet, start, end, layers.blocks[block], layers[block].alphas, x, y)
        torch.testing.assert_close(layers[block].values[0], expected, rtol=1e-5, atol=1e-6)


def test_blocks_may_be_named_and_overlap():
    """Fig. 6.18: one block whole, its batch norms' statistics, their weights, and its convolutions."""
    model, start, end = build(SmallResNet, 0), build(SmallResNet, 1).state_dict(), build(SmallResNet, 2).state_dict()
    x, y = images()
    blocks = {
        "all": "layer1",
        "statistics": ["layer1.*.running_mean", "layer1.*.running_var"],
        "norms": "layer1.*.norm.[wb]*",
        "convolutions": "layer1.*.conv.*",
    }
    layers = layerwise(model, start, end, over((x, y), F.cross_entropy), blocks, POINTS)
    assert list(layers) == list(blocks)
    assert {n.rsplit(".", 1)[1] for n in layers.blocks["norms"]} == {"weight", "bias"}
    for block, path in layers.items():
        expected = by_hand(SmallResNet, start, end, layers.blocks[block], path.alphas, x, y)
        torch.testing.assert_close(path.values[0], expected, rtol=1e-5, atol=1e-6)


def test_all_blocks_together_are_the_whole_path():
    model, start, end = build(SmallResNet, 0), build(SmallResNet, 1), build(SmallResNet, 2)
    x, y = images()
    evaluate = over((x, y), F.cross_entropy)
    layers = layerwise(model, start, end, evaluate, {"everything": "*"}, POINTS)
    whole = interpolate(model, start, end, evaluate, POINTS)
    torch.testing.assert_close(layers["everything"].values, whole.values, rtol=1e-5, atol=0)


def test_what_lies_before_a_block_is_computed_once():
    from torch.utils.flop_counter import FlopCounterMode

    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    x, y = torch.randn(10, 3), torch.arange(10) % 4
    with FlopCounterMode(display=False) as counter:
        layerwise(model, start, end, over([(x, y)], F.cross_entropy), ["4"], alphas=51, batched=True, chunk=51)
    # Two fixed layers once, the moving one for both ends; the sums of 51 points' outputs are no products. Two more
    # forwards compare the captured graph with the model.
    checked = 2 * (3 * 8 + 8 * 8 + 8 * 4)
    assert counter.get_total_flops() == 2 * 10 * (3 * 8 + 8 * 8 + 2 * 8 * 4 + checked)


def test_layers_in_front_of_moving_kernels_are_run_once_a_batch():
    from torch.utils.flop_counter import FlopCounterMode

    model, start, end = (build(SmallResNet, s) for s in (0, 1, 2))
    x, y = images()
    evaluate = over([(x[:6], y[:6]), (x[6:], y[6:])], F.cross_entropy)
    with FlopCounterMode(display=False) as counter:
        layerwise(model, start, end, evaluate, ["layer2"], POINTS)
    pixels = 12 * 4 * 4
    first, residual, last = 2 * pixels * 2 * 4 * 9, 2 * pixels * 4 * 4 * 9, 2 * 12 * 4 * 4
    checked = (first + 3 * residual + last) // 2  # the first batch's first point by the model, too
    assert counter.get_total_flops() == first + 2 * residual + POINTS * (residual + last) + checked


class Overwriting(nn.Module):
    """Adds a moving layer's output in place to what came before: the prefix cannot be remembered."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Linear(4, 4)
        self.unused = nn.Conv2d(1, 1, 1)

    def forward(self, x):
        x = torch.relu_(self.first(x))
        x += self.second(x)
        return self.last(x.mean((2, 3)))


@pytest.mark.parametrize("block", ["first", "second", "last", "unused"])
def test_models_that_write_in_place_or_ignore_a_block(block):
    model, start, end = build(Overwriting, 0), build(Overwriting, 1).state_dict(), build(Overwriting, 2).state_dict()
    x, y = images()
    for batched in (None, False):
        found = layerwise(model, start, end, over([(x, y)], F.cross_entropy), [block], POINTS, batched=batched)
        expected = by_hand(Overwriting, start, end, found.blocks[block], found[block].alphas, x, y)
        torch.testing.assert_close(found[block].values[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batched", [None, True, False])
def test_statistics_are_recomputed_layer_by_layer(batched):
    model, start, end = build(SmallResNet, 0), build(SmallResNet, 1).state_dict(), build(SmallResNet, 2).state_dict()
    x, y = images()
    found = layerwise(
        model, start, end, over([(x, y)], F.cross_entropy), ["layer2"], POINTS, statistics="recompute", batched=batched
    )
    for alpha, value in zip(found["layer2"].alphas.tolist(), found["layer2"].values[0].tolist(), strict=True):
        student = SmallResNet()
        state = {n: (1 - alpha) * start[n] + alpha * end[n] if n.startswith("layer2") else end[n] for n in end}
        student.load_state_dict({n: state[n].to(end[n].dtype) for n in end})
        for module in student.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0
        with torch.no_grad():
            student.train()(x)
            assert value == pytest.approx(float(F.cross_entropy(student.eval()(x), y)), rel=1e-4)


def test_an_ensemble_has_a_row_for_each_replica():
    one, two = (Ensemble(perceptron, 3, seed=s) for s in (1, 2))
    x, y = torch.randn(10, 3), torch.arange(10) % 4
    evaluate = over((x, y), F.cross_entropy)
    layers = layerwise(one, one, two, evaluate, alphas=POINTS)
    for i in range(3):
        alone = layerwise(one.alone(0), one.alone(i), two.alone(i), evaluate, alphas=POINTS)
        for block, path in layers.items():
            assert path.values.shape == (1, 3, POINTS)
            torch.testing.assert_close(path.values[0, i], alone[block].values[0], rtol=1e-5, atol=1e-6)


def test_automatic_blocks():
    assert list(blocks_of(perceptron())) == ["0", "2", "4"]
    assert blocks_of(perceptron())["2"] == ["2.weight", "2.bias"]
    resnet = blocks_of(SmallResNet())
    assert list(resnet) == ["conv1", "layer1", "layer2", "fc"]
    assert "bn1.running_var" in resnet["conv1"]
    assert list(blocks_of(SmallVGG())) == ["features.0", "features.3", "classifier"]
    assert "features.1.weight" in blocks_of(SmallVGG())["features.0"]
    wrapped = nn.ModuleDict({"net": SmallResNet()})
    assert list(blocks_of(wrapped)) == ["net.conv1", "net.layer1", "net.layer2", "net.fc"]
    assert blocks_of(nn.Linear(3, 2)) == {"weight": ["weight", "bias"]}
    for model in (perceptron(), SmallResNet(), SmallVGG(), wrapped, nn.Linear(3, 2)):
        names = [name for names in blocks_of(model).values() for name in names]
        assert sorted(names) == sorted([*dict(model.named_parameters()), *dict(model.named_buffers())])


def test_a_block_that_names_nothing_is_refused():
    with pytest.raises(ValueError, match="'7' names nothing"):
        blocks_of(perceptron(), ["7"])
    with pytest.raises(ValueError, match="empty"):
        blocks_of(perceptron(), [])


def test_groups_follow_the_barriers():
    """Two scalars: the loss has a barrier in one and none in the other."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(1, 1, bias=False)
            self.b = nn.Linear(1, 1, bias=False)

        def forward(self, x):
            a, b = self.a(x), self.b(x)
            return (a**2 - 1) ** 2 + b**2

    def state(a, b):
        return {"a.weight": torch.tensor([[a]]), "b.weight": torch.tensor([[b]])}

    model = Two()
    layers = layerwise(model, state(-0.9, 1.0), state(1.0, 0.0), lambda m: m(torch.ones(1, 1)).sum())
    assert layers.barriers() == ["a"]
    assert "barrier" in repr(layers)
    assert layers["a"].profile().height == pytest.approx(1 - (0.81 - 1) ** 2, rel=1e-2)
    groups = barrier_groups(model, layers, {"lr": 0.1}, {"lr": 0.01, "weight_decay": 0.0})
    assert [(g["lr"], [name for name, _ in g["params"]]) for g in groups] == [(0.1, ["a.weight"]), (0.01, ["b.weight"])]
    torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    only = barrier_groups(model, layers, {"lr": 0.1}, {"lr": 0.01}, tolerance=2.0)
    assert [len(g["params"]) for g in only] == [2]


def test_layers_plot_together():
    pytest.importorskip("matplotlib").use("agg")
    model, start, end = (build(perceptron, s) for s in (0, 1, 2))
    layers = layerwise(model, start, end, lambda m: m(torch.ones(2, 3)).square().sum())
    axes = layers.plot()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0", "2", "4"]
