"""Unusual models, evaluations and calls: the tracer leaves them to the plain loop, or has its values."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from holonom.landscape import interpolate, layerwise, over

from .test_landscape_tracer import IMAGES, POINTS, TARGETS, Net, Residual, build, loss, perceptron


def test_a_hook_gets_what_the_layer_returned():
    model, start, end = (build(Residual, seed) for seed in (0, 1, 2))
    kept, seen = [], {}
    model.norms[1].register_forward_hook(lambda module, inputs, output: kept.append(output.clone()))
    model.second.register_forward_hook(lambda module, inputs, output: seen.update(x=output))

    def evaluate(m):
        return {"loss": loss(m(IMAGES), TARGETS), "kept": kept[-1].mean() + seen["x"].mean()}

    paths = [interpolate(model, start, end, evaluate, POINTS, fast=fast) for fast in (True, False)]
    torch.testing.assert_close(paths[0].values, paths[1].values, rtol=1e-12, atol=0)


def test_autocast_turned_off_inside_the_model():
    def exempt(net, x):
        with torch.autocast("cpu", enabled=False):
            x = net.first(1000 * x.float())
        return net.last(F.relu(x).mean((2, 3)))

    models = [build(lambda: Net(exempt), seed).float() for seed in (0, 1, 2)]
    evaluate = over([(IMAGES.float(), TARGETS)], loss)
    fast, plain = (interpolate(*models, evaluate, POINTS, autocast=torch.bfloat16, fast=f) for f in (True, False))
    torch.testing.assert_close(fast.values, plain.values, rtol=1e-6, atol=1e-7)


def test_evaluations_that_draw_and_that_differentiate():
    model, start, end = (build(perceptron, seed) for seed in (0, 1, 2))

    def shuffled():
        draw = torch.Generator().manual_seed(1)

        def evaluate(m):
            order = torch.randperm(12, generator=draw)[:7]
            return loss(m(IMAGES[order]), TARGETS[order])

        return evaluate

    def gradient():
        return lambda m: torch.func.grad(lambda x: loss(m(x), TARGETS))(IMAGES).square().sum()

    for make in (shuffled, gradient):
        found = interpolate(model, start, end, make(), POINTS, batched=False)
        expected = interpolate(model, start, end, make(), POINTS, fast=False)
        torch.testing.assert_close(found.values, expected.values, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("batched", [None, True, False])
def test_a_module_under_two_names_and_arguments_of_all_kinds(batched):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
            self.b = self.a

        def forward(self, parts, scale=None, *, times):
            x = parts["x"] * (1 if scale is None else scale)
            return self.b(self.a(x)) * times

    torch.manual_seed(0)
    model, start, end = (Twice().double() for _ in range(3))
    weight, x = model.a[0].weight, torch.randn(12, 4).double()

    def evaluate(m):
        return loss(m({"x": x}, times=2), TARGETS) + loss(m({"x": x}, torch.tensor(3.0), times=1.5), TARGETS)

    found = interpolate(model, start, end, evaluate, POINTS, batched=batched)
    assert model.a[0].weight is weight
    expected = interpolate(model, start, end, evaluate, POINTS, fast=False)
    torch.testing.assert_close(found.values, expected.values, rtol=1e-12, atol=0)


def test_results_in_front_of_the_moving_layer_are_freed():
    most = []

    class Counting(torch.overrides.TorchFunctionMode):
        """Every result of a linear layer that is alive."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is F.linear:
                alive.append(weakref.ref(result))
                most.append(sum(ref() is not None for ref in alive))
            return result

    alive = []
    model, start, end = (nn.Sequential(*(nn.Linear(4, 4) for _ in range(20))) for _ in range(3))
    with Counting():
        layerwise(model, start, end, over([(torch.randn(12, 4), TARGETS)], loss), {"one": "19"}, POINTS, batched=False)
    assert max(most) <= 3
