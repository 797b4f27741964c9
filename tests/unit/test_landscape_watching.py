"""Models that do unusual things: points that are watched, remembered and folded still have the loop's values."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from holonom.landscape import interpolate, layerwise, over

POINTS = 4
X = torch.randn(12, 2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 4


@torch.jit.script
def is_small(x):
    return bool(x.mean() < 100)


def doubled(x):
    return torch.func.vmap(lambda row: 2 * row / row.norm())(x)


class Net(nn.Module):
    """Two chains, a linear layer, and a number that goes from 0 to 1."""

    def __init__(self, forward):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        self.last = nn.Linear(4, 4)
        self.switch = nn.Parameter(torch.zeros(()))
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


def whole_numbers(net, x):
    places = torch.arange(4) + torch.ones(4, dtype=torch.long)
    return net.head(net.body(x)) * F.relu(places)


def exempt_from_autocast(net, x):
    with torch.autocast("cpu", enabled=False):
        x = net.first(1000 * x.float())
    return net.last(F.relu(x).mean((2, 3)))


def read_by_a_script(net, x):
    x = net.first(x)
    factor = 1.0 if is_small(x) else 2.0
    return factor * net.head(F.relu(net.norms[0](x)))


def stride_by_weight(net, x):
    x = F.conv2d(x, net.first.weight, net.first.bias, stride=2 if net.late else 1)
    size = x.shape[-1]
    return net.head(F.relu(net.norms[0](x))) / size**2


def alpha_by_weight(net, x):
    how = {"alpha": 3} if net.late else {}
    x = F.relu(net.first(x))
    return net.head(F.relu(torch.add(net.norms[1](net.second(x)), x, **how)))


def number_by_weight(net, x):
    late = net.late
    x = F.relu(net.first(x))
    return net.head(F.relu(net.norms[1](net.second(x)) + (1.0 if late else x)))


def kept_by_weight(net, x):
    late, before = net.late, torch.ones(1)
    x = net.first(x)
    net.kept = x if late else before
    return net.head(F.relu(net.norms[0](x)))


def lazily(net, x):
    if net.mask is None:
        net.mask = (torch.arange(6) < 5).to(x.dtype).expand(x.shape)
    return net.head(net.body(x * net.mask))


def summed_in_place(net, x):
    total = torch.zeros(len(x), 4, 6, 6, dtype=x.dtype)
    total[:, :2] += net.body(x)[:, :2]
    return net.head(total)


def forces(net, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (force,) = torch.autograd.grad(net.head(net.body(x)).square().sum(), x)
    return force.mean((2, 3)).repeat(1, 2)


def mapped(net, x):
    return net.head(net.body(doubled(x)))


CASES = [
    *(whole_numbers, read_by_a_script, stride_by_weight, alpha_by_weight, number_by_weight),
    *(lazily, summed_in_place, forces, mapped),
]


def build(forward, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = Net(forward)
        for norm in net.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
        net.switch.data.fill_(float(seed - 1))
    return net.double().eval()


def loop(net, start, end, alphas, evaluate):
    values = []
    with torch.no_grad():
        for alpha in alphas.tolist():
            net.load_state_dict({name: (1 - alpha) * x + alpha * end[name] for name, x in start.items()})
            values.append(evaluate(net))
    return torch.stack(values)


def compare(forward, evaluate, **options):
    net, start, end = (build(forward, seed) for seed in (0, 1, 2))
    start, end = start.state_dict(), end.state_dict()
    path = interpolate(net, start, end, evaluate, POINTS, batched=False, **options)
    expected = loop(build(forward, 0), start, end, path.alphas, evaluate)
    torch.testing.assert_close(path.values[0], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("forward", CASES)
def test_the_loops_values(forward):
    compare(forward, lambda net: F.cross_entropy(net(X), Y))


def test_a_result_that_only_some_points_keep():
    net, start, end = (build(kept_by_weight, seed) for seed in (0, 1, 2))

    def evaluate(call):
        return F.cross_entropy(call(X), Y) + (net.kept > 0).double().mean()

    states = start.state_dict(), end.state_dict()
    path = interpolate(net, *states, evaluate, POINTS, batched=False)
    expected = loop(net, *states, path.alphas, evaluate)
    torch.testing.assert_close(path.values[0], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("forward", CASES)
def test_the_loops_values_where_one_layer_moves(forward):
    net, start, end = (build(forward, seed) for seed in (0, 1, 2))
    first, last = start.state_dict(), end.state_dict()
    path = layerwise(net, first, last, over((X, Y), F.cross_entropy), {"one": "second"}, POINTS, batched=False)["one"]
    moved = {n: first[n] if n.startswith("second") else x for n, x in last.items()}
    expected = loop(build(forward, 0), moved, last, path.alphas, lambda m: F.cross_entropy(m(X), Y))
    torch.testing.assert_close(path.values[0], expected, rtol=1e-12, atol=1e-13)


def test_what_is_exempt_from_autocast_stays_so():
    """A chain that is half inside runs as the model says."""
    net, start, end = (build(exempt_from_autocast, seed).float() for seed in (0, 1, 2))
    x = X.float()
    evaluate = over((x, Y), F.cross_entropy)
    path = interpolate(net, start, end, evaluate, POINTS, batched=False, autocast=torch.bfloat16)

    def alone(net):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = net(x)
        return F.cross_entropy(outputs.float(), Y)

    expected = loop(net, start.state_dict(), end.state_dict(), path.alphas, alone)
    torch.testing.assert_close(path.values[0].float(), expected, rtol=1e-6, atol=1e-7)


def test_an_evaluation_with_other_images_each_time():
    def make():
        draw = torch.Generator().manual_seed(1)

        def evaluate(net):
            order = torch.randperm(12, generator=draw)
            return F.cross_entropy(net(X[order].flatten(2).flatten(1)), Y[order])

        return evaluate

    def perceptron(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(72, 5), nn.ReLU(), nn.Linear(5, 4)).double()

    net, start, end = (perceptron(seed) for seed in (0, 1, 2))
    path = interpolate(net, start, end, make(), POINTS, batched=False)
    expected = loop(net, start.state_dict(), end.state_dict(), path.alphas, make())
    torch.testing.assert_close(path.values[0], expected, rtol=1e-12, atol=1e-13)


def test_a_gradient_with_respect_to_the_images():
    compare(
        lambda net, x: net.head(net.body(2 * x)),
        lambda net: torch.func.grad(lambda x: F.cross_entropy(net(x), Y))(X).square().sum(),
    )


@pytest.mark.parametrize("batched", [None, True, False])
def test_a_module_under_two_names_comes_back(batched):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
            self.b = self.a

        def forward(self, x):
            return self.b(self.a(x))

    torch.manual_seed(0)
    net, start, end = Twice(), Twice(), Twice()
    before = {name: x.clone() for name, x in net.state_dict().items()}
    weight = net.a[0].weight
    x = torch.randn(12, 4)
    states = [m.state_dict() for m in (start, end)]
    path = interpolate(net, *states, over((x, Y), F.cross_entropy), POINTS, batched=batched)
    assert net.a[0].weight is weight
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())
    expected = loop(Twice(), *states, path.alphas, lambda m: F.cross_entropy(m(x), Y))
    torch.testing.assert_close(path.values[0].float(), expected, rtol=1e-6, atol=1e-6)


def test_a_buffer_that_the_model_writes_to_is_not_the_callers():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("average", torch.ones(()))

        def forward(self, x):
            self.average.mul_(0.5)
            return self.linear(x)

    net = Counting()
    start = Counting().state_dict()
    interpolate(net, start, net, over((torch.randn(12, 4), Y), F.cross_entropy), POINTS, batched=False)
    assert float(net.average) == float(start["average"]) == 1


def test_what_is_in_front_is_not_kept_alive():
    """Memory of the first point is the model's own, however many layers come before the moving one."""
    alive, most = [], []

    class Layer(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            alive.append(weakref.ref(y))
            most.append(sum(ref() is not None for ref in alive))
            return y

    def make(seed):
        torch.manual_seed(seed)
        return nn.Sequential(*(Layer(4, 4) for _ in range(20)))

    net, start, end = (make(seed) for seed in (0, 1, 2))
    layerwise(net, start, end, over((torch.randn(12, 4), Y), F.cross_entropy), {"one": "19"}, POINTS, batched=False)
    assert max(most[:20]) <= 3  # later points are handed shapes without memory
