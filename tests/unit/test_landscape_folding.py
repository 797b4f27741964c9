"""Chains of convolution, norm, sum and ReLU done at once: the same numbers, for whatever model."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from holonom.ensemble import Ensemble
from holonom.landscape import interpolate, layerwise, over
from holonom.landscape.layer import Layer
from holonom.landscape.prefix import Prefix
from holonom.models import tiny_resnet

POINTS = 4
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="cuDNN's fused kernels need a GPU")


class Forms(nn.Module):
    """Every way to write a chain, on images of two channels."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.grouped = nn.Conv2d(4, 4, 3, stride=2, padding=2, dilation=2, groups=2)
        self.same = nn.Conv2d(4, 4, 3, padding="same", padding_mode="reflect")
        self.bare = nn.Conv2d(4, 4, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4, eps=0.1)])
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        x = F.relu(self.norms[0](self.plain(x)))
        x = self.norms[1](self.grouped(x)).relu()
        x = torch.relu(x + self.norms[2](self.same(x)))
        x = self.bare(x).relu_()
        return self.last(x.mean((2, 3)))


class InPlace(nn.Module):
    """A residual block as usually written: ``out += identity`` and in-place ReLUs, with and without a projection."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(n, 4, 3, padding=1) for n in (2, 4, 4, 4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(4) for _ in range(5)])
        self.projection = nn.Conv2d(2, 4, 1)
        self.relu = nn.ReLU(inplace=True)
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        out = self.relu(self.norms[0](self.convolutions[0](x)))
        out = self.norms[1](self.convolutions[1](out))
        identity = self.norms[4](self.projection(x))
        out += identity
        identity = self.relu(out)
        out = self.relu(self.norms[2](self.convolutions[2](identity)))
        out = self.norms[3](self.convolutions[3](out))
        out += identity
        return self.last(self.relu(out).mean((2, 3)))


class Readers(nn.Module):
    """Results that are read twice, kept, overwritten or returned: nothing here may be left out."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(n, 4, 3, padding=1) for n in (2, 4, 4, 4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(4) for _ in range(4)])
        self.norms[3].track_running_stats = False
        self.kept = None

    def forward(self, x):
        first = self.convolutions[0](x)
        x = torch.tanh(self.norms[0](first)) + first
        self.kept = self.convolutions[1](x)
        x = torch.sigmoid(self.norms[1](self.kept))
        x = F.conv2d(x, self.convolutions[2].weight, padding=1).mul_(2)
        x = torch.tanh(self.norms[2](x))
        x = F.batch_norm(self.convolutions[3](x), None, None, training=True)
        return x.mean((2, 3)) + self.kept.mean((2, 3))


class Ignoring(nn.Module):
    """Overwrites a tensor and goes on with its old name."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.body(x)
        self.relu(x)
        return x.mean((2, 3))


class Undecided(nn.Module):
    """What is called, and how often, depends on the weights."""

    def __init__(self):
        super().__init__()
        self.switch = nn.Parameter(torch.zeros(()))
        self.convolution, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        bend = torch.tanh if self.switch > 0.5 else F.relu
        x = bend(self.norm(self.convolution(x))).mean((2, 3))
        return x + 1 if self.switch > 0.5 else x * self.switch


def stack(convolution, norm):
    return lambda: nn.Sequential(
        convolution(2, 4, 3), norm(4), nn.ReLU(), convolution(4, 4, 2), norm(4), nn.Flatten(), nn.LazyLinear(4)
    )


FLAT = torch.randn(12, 2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
IMAGES = torch.randn(12, 2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SOLIDS = torch.randn(12, 2, 6, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.arange(12) % 4
METRICS = {"loss": F.cross_entropy, "mean": lambda outputs, targets: outputs.mean()}
BATCH = 6
CASES = {
    "forms": (Forms, IMAGES, ["relu", "relu", "relu", "relu"]),
    "in place": (InPlace, IMAGES, ["relu", "norm", "norm", "relu", "relu"]),
    "readers": (Readers, IMAGES, []),
    "ignoring": (Ignoring, IMAGES, ["relu"]),
    "undecided": (Undecided, IMAGES, ["relu"]),
    "conv1d": (stack(nn.Conv1d, nn.BatchNorm1d), FLAT, ["relu", "norm"]),
    "conv3d": (stack(nn.Conv3d, nn.BatchNorm3d), SOLIDS, ["relu", "norm"]),
    "residual": (
        lambda: tiny_resnet(4, 2, 4),
        IMAGES,
        ["relu", "relu", "relu", "norm", "relu", "relu", "norm"] + 2 * ["relu"],
    ),
}


def build(make, seed, x=IMAGES):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make()
        model(x.float())
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                if module.affine:
                    module.weight.data.uniform_(-1, 2)
                    module.bias.data.normal_()
        if isinstance(model, Undecided):
            model.switch.data.fill_(float(seed - 1))
    return model.double().eval()


def by_hand(model, start, end, alphas, x=IMAGES, y=TARGETS):
    rows = []
    for alpha in alphas.tolist():
        model.load_state_dict({name: (1 - alpha) * a + alpha * end[name] for name, a in start.items()})
        with torch.no_grad():
            batches = [(model(a), b) for a, b in zip(x.split(BATCH), y.split(BATCH), strict=True)]
            values = [torch.stack([metric(*batch) for metric in METRICS.values()]) for batch in batches]
        rows.append(torch.stack(values).mean(0))
    return torch.stack(rows, 1)


def ends_of_chains(model, x):
    """The kind of each chain's last call."""
    prefix = Prefix()
    with torch.no_grad():
        mode = prefix.at(model.parameters())
        with mode:
            outputs = model(x)
        mode.finish(outputs)
    folding = prefix.folding
    return [folding.calls[number].kind for number, step in sorted(folding.steps.items()) if step is None]


@pytest.mark.parametrize("case", CASES)
def test_the_loop_to_rounding(case):
    make, x, ends = CASES[case]
    model, start, end = (build(make, seed, x) for seed in (0, 1, 2))
    first, last = start.state_dict(), end.state_dict()
    assert ends_of_chains(start, x) == ends
    path = interpolate(model, first, last, over((x, TARGETS), METRICS, batch_size=BATCH), POINTS, batched=False)
    expected = by_hand(model, first, last, path.alphas, x)
    torch.testing.assert_close(path.values, expected, rtol=1e-12, atol=1e-12)


class Counter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def test_norms_are_run_at_the_first_point_alone():
    model, start, end = (build(lambda: tiny_resnet(4, 2, 4), seed) for seed in (0, 1, 2))
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    with Counter() as counter:
        interpolate(model, start, end, over((IMAGES, TARGETS), F.cross_entropy, batch_size=12), POINTS)
    ran = sum(count for name, count in counter.counts.items() if "batch_norm" in name)
    assert ran == norms
    assert counter.counts["convolution"] == norms * POINTS


def test_a_hook_that_keeps_a_result_finds_it():
    model, start, end = (build(InPlace, seed) for seed in (0, 1, 2))
    kept = []
    hook = model.norms[2].register_forward_hook(lambda module, inputs, output: kept.append(output.clone()))
    seen = {}
    other = model.convolutions[2].register_forward_hook(lambda module, inputs, output: seen.update(x=output))

    def evaluate(m):
        loss = F.cross_entropy(m(IMAGES), TARGETS)
        return {"loss": loss, "kept": kept[-1].mean() + seen["x"].mean()}

    path = interpolate(model, start, end, evaluate, POINTS)
    for alpha, value in zip(path.alphas.tolist(), path["kept"].tolist(), strict=True):
        model.load_state_dict(path.state(alpha))
        with torch.no_grad():
            assert evaluate(model)["kept"].item() == pytest.approx(value, rel=1e-12)
    hook.remove()
    other.remove()


@pytest.mark.parametrize("blocks", [["norms.1"], ["same", "norms.2"], ["plain"]], ids=str)
def test_remembered_layers_in_front(blocks):
    """A chain may begin among the layers that do not move."""
    model, start, end = (build(Forms, seed) for seed in (0, 1, 2))
    first, last = start.state_dict(), end.state_dict()
    layers = layerwise(model, first, last, over((IMAGES, TARGETS), METRICS), {"one": blocks}, POINTS, batched=False)
    moved = {n: first[n] if any(n.startswith(b + ".") for b in blocks) else x for n, x in last.items()}
    path = layers["one"]
    torch.testing.assert_close(path.values, by_hand(model, moved, last, path.alphas), rtol=1e-12, atol=1e-12)


def test_recomputed_statistics():
    model, start, end = (build(Forms, seed) for seed in (0, 1, 2))
    evaluate = over((IMAGES, TARGETS), METRICS)
    path = interpolate(model, start, end, evaluate, POINTS, batched=False, statistics="recompute")
    together = interpolate(model, start, end, evaluate, POINTS, batched=True, statistics="recompute")
    torch.testing.assert_close(path.values, together.values, rtol=1e-12, atol=1e-12)


def test_replicas():
    starts, ends = ([build(InPlace, seed) for seed in seeds] for seeds in ((1, 2), (3, 4)))
    model = build(InPlace, 0)
    evaluate = over((IMAGES, TARGETS), METRICS)
    stacked = [
        {name: torch.stack([m.state_dict()[name] for m in models]) for name in model.state_dict()}
        for models in (starts, ends)
    ]
    path = interpolate(model, *stacked, evaluate, POINTS, replicas=2)
    for i in range(2):
        alone = by_hand(model, starts[i].state_dict(), ends[i].state_dict(), path.alphas)
        torch.testing.assert_close(path.values[:, i], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("half", [torch.bfloat16, None], ids=["autocast", "half states"])
def test_low_precision_folds_in_float32(half):
    """As close to float64 as the model itself is in this precision."""
    models = [build(Forms, seed) for seed in (0, 1, 2)]
    exact = interpolate(*models, over((IMAGES, TARGETS), F.cross_entropy), POINTS).values
    models = [m.float() if half else m.bfloat16() for m in models]
    x = IMAGES.to(torch.float32 if half else torch.bfloat16)
    path = interpolate(*models, over((x, TARGETS), F.cross_entropy), POINTS, autocast=half)
    torch.testing.assert_close(path.values, exact, rtol=0.02, atol=0.02)


def layers(device="cpu", dtype=torch.float64):
    """Convolutions with and without bias, stride, dilation and something to add."""
    made = torch.Generator().manual_seed(0)
    for channels, size, geometry in (
        (4, 3, (1, 1, 1, 1)),
        (8, 1, ((2, 2), (0, 0), (1, 1), 1)),
        (8, 3, (1, (2, 2), 2, 1)),
    ):
        x, weight, bias = (
            torch.randn(shape, generator=made, dtype=torch.float64).to(device, dtype)
            for shape in ((4, channels, 12, 12), (16, channels, size, size), (16,))
        )
        if device != "cpu":
            weight = weight.contiguous(memory_format=torch.channels_last)
        shape = torch.conv2d(x, weight, None, *geometry).shape
        added = torch.randn(shape, generator=made, dtype=torch.float64).to(device, dtype)
        for b in (None, bias):
            for z in (None, added):
                yield Layer(torch.conv2d, x, weight, b, geometry, z, rectified=True)


def test_one_kernel_means_the_same(monkeypatch):
    """cuDNN's documented y = relu(conv(x) + α z + bias), transcribed, called as the GPU's is."""

    def with_sum(x, weight, z, alpha, bias, stride, padding, dilation, groups):
        y = torch.conv2d(x, weight, None, stride, padding, dilation, groups) + alpha * z
        return torch.relu(y if bias is None else y + bias[:, None, None])

    def without(x, weight, bias, stride, padding, dilation, groups):
        return torch.relu(torch.conv2d(x, weight, bias, stride, padding, dilation, groups))

    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", with_sum)
    monkeypatch.setattr(torch, "cudnn_convolution_relu", without)
    for layer in layers():
        assert not layer._has_a_kernel()
        torch.testing.assert_close(layer._in_one_kernel(), layer.run(), rtol=1e-13, atol=1e-13)


@CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dirt", [0.0, float("nan")])
@torch.no_grad()
def test_cudnn_means_the_same(dtype, dirt):
    """To the rounding of products to 8 or 11 bits, also where the memory that is written to holds NaN."""
    for layer, exact in zip(layers("cuda", dtype), layers(), strict=True):
        assert layer._has_a_kernel()
        expected = exact.run()
        blocks = [torch.full(expected.shape, dirt, dtype=dtype, device="cuda") for _ in range(8)]
        del blocks
        limit = 0.1 if dtype is torch.bfloat16 else 0.02
        torch.testing.assert_close(layer._in_one_kernel().double().cpu(), expected, rtol=limit, atol=limit)


@CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@torch.no_grad()
def test_cudnn_lets_nan_through(dtype):
    """A ReLU that turned NaN into 0 would hide that a path left where the model is defined."""
    for layer, exact in zip(layers("cuda", dtype), layers(), strict=True):
        layer.x[0, 0, 0, 0] = exact.x[0, 0, 0, 0] = torch.nan
        reached = exact.run().isnan()
        assert reached.any()
        assert layer._in_one_kernel().cpu().isnan()[reached].all()


@CUDA
@pytest.mark.parametrize("case", CASES)
def test_the_loop_on_a_gpu(case, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    make, x, _ = CASES[case]
    models = [build(make, seed, x).float().cuda() for seed in (0, 1, 2)]
    states = [m.state_dict() for m in models[1:]]
    x, y = x.float().cuda(), TARGETS.cuda()
    path = interpolate(models[0], *states, over((x, y), METRICS, batch_size=BATCH), POINTS, batched=False)
    expected = by_hand(models[0], *states, path.alphas, x, y).double().cpu()
    torch.testing.assert_close(path.values, expected, rtol=1e-5, atol=1e-5)


def test_an_ensemble_alone_and_together():
    ensemble = Ensemble(lambda: tiny_resnet(4, 2, 4), 2).eval()
    start = {name: x.clone() for name, x in ensemble.state_dict().items()}
    end = {name: x + 0.1 if x.is_floating_point() else x for name, x in start.items()}
    x = IMAGES.float()
    alone = interpolate(ensemble, start, end, over((x, TARGETS), METRICS), POINTS, batched=False)
    together = interpolate(ensemble, start, end, over((x, TARGETS), METRICS), POINTS, batched=True)
    torch.testing.assert_close(alone.values, together.values, rtol=1e-5, atol=1e-6)
