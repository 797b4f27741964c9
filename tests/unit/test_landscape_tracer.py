"""The tracer has the plain loop's values, for ordinary models and for those that torch.fx cannot follow."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from holonom.landscape import interpolate, layerwise, over, sweep
from holonom.models import TransformerLM, tiny_resnet

POINTS = 4
DRAW = torch.Generator().manual_seed(0)
FLAT = torch.randn(12, 2, 6, generator=DRAW, dtype=torch.float64)
IMAGES = torch.randn(12, 2, 6, 6, generator=DRAW, dtype=torch.float64)
SOLIDS = torch.randn(12, 2, 6, 6, 6, generator=DRAW, dtype=torch.float64)
TOKENS = torch.randint(5, (12, 3), generator=DRAW)
TARGETS = torch.arange(12) % 4


@torch.jit.script
def is_small(x):
    return bool(x.mean() < 100)


class Forms(nn.Module):
    """Every way to write a convolution or linear layer with norm, sum and ReLU behind it."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.grouped = nn.Conv2d(4, 4, 3, stride=2, padding=2, dilation=2, groups=2)
        self.same = nn.Conv2d(4, 4, 3, padding="same", padding_mode="reflect")
        self.second = nn.Conv2d(4, 4, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4, eps=0.1)])
        self.last = nn.Linear(4, 4)
        self.row = nn.Parameter(torch.randn(4))

    def forward(self, x):
        x = F.relu(self.norms[0](self.plain(x)))
        x = self.norms[1](self.grouped(x)).relu()
        x = torch.relu(x + self.norms[2](self.same(x)))
        x = self.second(x).relu_()
        x = self.last(x.mean((2, 3)))
        return x + F.linear(x, self.row)[:, None]


class Residual(nn.Module):
    """A residual block as usually written: ``out += identity`` and in-place ReLUs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4) for _ in range(3)])
        self.projection = nn.Conv2d(2, 4, 1)
        self.relu = nn.ReLU(inplace=True)
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        out = self.relu(self.norms[0](self.first(x)))
        identity = self.norms[2](self.projection(x))
        out = self.norms[1](self.second(out))
        out += identity
        return self.last(self.relu(out).mean((2, 3)))


class Tied(nn.Module):
    """One matrix used twice."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.second = nn.MultiheadAttention(6, 2, batch_first=True)
        self.decoder = nn.Linear(6, 5, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.decoder((x + self.second(x, x, x, need_weights=False)[0]).mean(1))


class Net(nn.Module):
    """Two convolutions with norms, a linear layer, and a number that goes from 0 to 1."""

    def __init__(self, forward):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        self.last = nn.Linear(4, 4)
        self.switch = nn.Parameter(torch.zeros(()))
        self.register_buffer("average", torch.ones(()))
        self.mask = self.kept = None
        self._forward = forward

    def body(self, x):
        x = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(x)))

    def head(self, x):
        return self.last(x.mean((2, 3)))

    @property
    def late(self):
        return bool(self.switch > 0.5)

    def forward(self, x):
        return self._forward(self, x)


# ── models that are captured ─────────────────────────────────────────────────────────────────────


def read_twice(net, x):
    first = net.first(x)
    return net.head(torch.tanh(net.norms[0](first)) + first)


def overwritten_and_read(net, x):
    x = net.norms[0](net.first(x))
    torch.relu_(x)
    return net.head(x)


def sum_into_an_earlier_result(net, x):
    x = torch.relu_(net.first(x))
    x += net.second(x)
    return net.head(x)


def whole_numbers(net, x):
    places = torch.arange(4, device=x.device) + torch.ones(4, dtype=torch.long, device=x.device)
    return net.head(net.body(x)) * F.relu(places)


def sum_of_other_shapes(net, x):
    x = F.relu(net.first(x) + torch.ones(6).to(x))
    x = F.relu(net.second(x).mean(0) + x)
    return net.head(F.relu(torch.add(net.second(x), x, alpha=3)))


def buffer_written(net, x):
    net.average.mul_(0.5)
    return net.head(net.body(x * net.average)) * net.average


def lazily(net, x):
    if net.mask is None:
        net.mask = (torch.arange(6) < 5).to(x).expand(x.shape)
    return net.head(net.body(x * net.mask))


# ── models that are not ──────────────────────────────────────────────────────────────────────────


def by_weight(net, x):
    x = (torch.tanh if net.late else F.relu)(net.norms[0](net.first(x)))
    return net.head(x) + 1 if net.late else net.head(x) * net.switch


def read_by_a_script(net, x):
    x = net.first(x)
    return (1.0 if is_small(x) else 2.0) * net.head(F.relu(net.norms[0](x)))


def result_kept(net, x):
    net.kept = net.first(x)
    return net.head(F.relu(net.norms[0](net.kept)))


def depends_on_type(net, x):
    return net.head(net.body(x if isinstance(x, torch.Tensor) else 2 * x))


def forces(net, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (force,) = torch.autograd.grad(net.head(net.body(x)).square().sum(), x)
    return force.mean((2, 3)).repeat(1, 2)


def mapped(net, x):
    return net.head(net.body(torch.func.vmap(lambda row: 2 * row / row.norm())(x)))


def sequence(convolution, norm):
    return lambda: nn.Sequential(
        convolution(2, 4, 3), norm(4), nn.ReLU(), convolution(4, 4, 2), norm(4), nn.Flatten(), nn.LazyLinear(4)
    )


def perceptron():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(72, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)
    )


CAPTURED = {
    "perceptron": (perceptron, IMAGES, "4"),
    "forms": (Forms, IMAGES, "second"),
    "norm moves": (Forms, IMAGES, "norms.1"),
    "residual": (Residual, IMAGES, "second"),
    "tiny_resnet": (lambda: tiny_resnet(4, 2, 4), IMAGES, "stages.1"),
    "conv1d": (sequence(nn.Conv1d, nn.BatchNorm1d), FLAT, "3"),
    "conv3d": (sequence(nn.Conv3d, nn.BatchNorm3d), SOLIDS, "3"),
    "tied": (Tied, TOKENS, "second"),
}
NETS = [
    read_twice, overwritten_and_read, sum_into_an_earlier_result, whole_numbers, sum_of_other_shapes, buffer_written,
    lazily,
]  # fmt: skip
CAPTURED |= {net.__name__: (lambda net=net: Net(net), IMAGES, "second") for net in NETS}
REFUSED = {"transformer": (lambda: TransformerLM(5, 8, 2, 16), TOKENS, "layers.0")}
NETS = [by_weight, read_by_a_script, result_kept, depends_on_type, forces, mapped]
REFUSED |= {net.__name__: (lambda net=net: Net(net), IMAGES, "second") for net in NETS}


def build(make, seed, x=IMAGES):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make()
        if not isinstance(model, Net):
            model(x.float() if x.is_floating_point() else x)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                if module.affine:
                    module.weight.data.uniform_(-1, 2)
                    module.bias.data.normal_()
        if isinstance(model, Net):
            model.switch.data.fill_(float(seed - 1))
    return model.double().eval()


def loss(outputs, targets):
    return F.cross_entropy(outputs.flatten(1), targets)


@pytest.fixture
def tracers(monkeypatch):
    """The tracers that were made."""
    made = []

    class Listed(sweep.Tracer):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(sweep, "Tracer", Listed)
    return made


@pytest.mark.parametrize("case", [*CAPTURED, *REFUSED])
def test_the_plain_loops_values(case, tracers):
    make, x, block = (CAPTURED | REFUSED)[case]
    model, start, end = (build(make, seed, x) for seed in (0, 1, 2))
    before = copy.deepcopy(model.state_dict())
    batches = over([(x[:6], TARGETS[:6]), (x[6:], TARGETS[6:])], loss)
    everything = {"all": "*", "one": block}
    expected = layerwise(model, start, end, batches, everything, POINTS, fast=False)
    assert not tracers
    for batched in (None, False):
        found = layerwise(model, start, end, batches, everything, POINTS, batched=batched)
        for name, path in found.items():
            torch.testing.assert_close(path.values, expected[name].values, rtol=1e-11, atol=1e-12, msg=name)
        (graph,) = tracers.pop().graphs.values()
        assert (graph is not None) == (case in CAPTURED)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_fallback_is_the_loop_bit_for_bit():
    model, start, end = (build(lambda: Net(by_weight), seed) for seed in (0, 1, 2))
    paths = [
        interpolate(model, start, end, over([(IMAGES, TARGETS)], loss), POINTS, fast=fast) for fast in (True, False)
    ]
    assert torch.equal(paths[0].values, paths[1].values)
    with pytest.raises(ValueError, match="contradicts"):
        interpolate(model, start, end, over([(IMAGES, TARGETS)], loss), POINTS, fast=False, batched=True)


@pytest.mark.parametrize(("case", "joined"), [("forms", 4), ("residual", 3), ("tiny_resnet", 9), ("read_twice", 0)])
def test_layers_are_joined(case, joined, tracers):
    """Norms and ReLUs that alone read a layer's result are run with it."""
    make, x, _ = CAPTURED[case]
    model, start, end = (build(make, seed, x) for seed in (0, 1, 2))
    interpolate(model, start, end, over([(x, TARGETS)], loss), POINTS)
    (graph,) = tracers.pop().graphs.values()
    (steps,) = graph._steps.values()
    assert sum(step.last is not step.node for step in steps) == joined
