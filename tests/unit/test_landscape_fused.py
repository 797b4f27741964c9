"""Layers with norm, sum and ReLU joined to them: the same numbers in low precision and from cuDNN's fused kernels."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from holonom.landscape import interpolate, over
from holonom.landscape._tracer import _use_channels_last
from holonom.landscape._tracer.layers import Layer, Norm
from holonom.landscape.points import Points
from holonom.models import tiny_resnet

from .test_landscape_tracer import CAPTURED, IMAGES, POINTS, TARGETS, Forms, build, loss

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="cuDNN's fused kernels need a GPU")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


class Counter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def test_norms_are_run_only_to_check_the_graph():
    model, start, end = (build(lambda: tiny_resnet(4, 2, 4), seed) for seed in (0, 1, 2))
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    with Counter() as counter:
        interpolate(model, start, end, over([(IMAGES, TARGETS)], loss), POINTS)
    assert sum(count for name, count in counter.counts.items() if "batch_norm" in name) == norms
    assert counter.counts["convolution"] == norms * (POINTS + 1)


@pytest.mark.parametrize("half", [torch.bfloat16, None], ids=["autocast", "half states"])
def test_low_precision_folds_in_float32(half):
    """As close to float64 as the model itself is in this precision."""
    models = [build(Forms, seed) for seed in (0, 1, 2)]
    exact = interpolate(*models, over((IMAGES, TARGETS), loss), POINTS).values
    models = [m.float() if half else m.bfloat16() for m in models]
    x = IMAGES.to(torch.float32 if half else torch.bfloat16)
    path = interpolate(*models, over((x, TARGETS), loss), POINTS, autocast=half)
    torch.testing.assert_close(path.values, exact, rtol=0.02, atol=0.02)


def layers(device="cpu", dtype=torch.float64):
    """Convolutions with and without bias, stride, dilation and something to add: (layer, x, weight, bias)."""
    draw = torch.Generator().manual_seed(0)
    for channels, size, geometry in (
        (4, 3, (1, 1, 1, 1)),
        (8, 1, ((2, 2), (0, 0), (1, 1), 1)),
        (8, 3, (1, (2, 2), 2, 1)),
    ):
        x, weight, bias = (
            torch.randn(shape, generator=draw, dtype=torch.float64).to(device, dtype)
            for shape in ((4, channels, 12, 12), (16, channels, size, size), (16,))
        )
        if device != "cpu":
            weight = weight.contiguous(memory_format=torch.channels_last)
        shape = torch.conv2d(x, weight, None, *geometry).shape
        added = torch.randn(shape, generator=draw, dtype=torch.float64).to(device, dtype)
        for b in (None, bias):
            for z in (None, added):
                yield Layer(torch.conv2d, geometry, None, z, relu=True), x, weight, b


def test_a_norm_is_folded_exactly():
    draw = torch.Generator().manual_seed(1)
    mean, weight, bias = (torch.randn(16, generator=draw, dtype=torch.float64) for _ in range(3))
    for norm in (Norm(mean, mean.square() + 0.1, weight, bias, 1e-5), Norm(mean, mean.square(), None, None, 0.1)):
        for layer, *args in layers():
            y = norm(torch.conv2d(*args, *layer.geometry))
            expected = torch.relu(y if layer.added is None else y + layer.added)
            torch.testing.assert_close(replace(layer, norm=norm)(*args), expected, rtol=1e-12, atol=1e-12)


def test_the_fused_kernels_arguments(monkeypatch):
    """cuDNN's documented y = relu(conv(x) + α z + bias), transcribed, called as the GPU's is."""

    def with_sum(x, weight, z, alpha, bias, stride, padding, dilation, groups):
        y = torch.conv2d(x, weight, None, stride, padding, dilation, groups) + alpha * z
        return torch.relu(y if bias is None else y + bias[:, None, None])

    def without(x, weight, bias, stride, padding, dilation, groups):
        return torch.relu(torch.conv2d(x, weight, bias, stride, padding, dilation, groups))

    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", with_sum)
    monkeypatch.setattr(torch, "cudnn_convolution_relu", without)
    for layer, x, weight, bias in layers():
        assert not layer.has_fused_kernel(x, weight)
        if layer.added is not None:
            assert layer._output_shape(x, weight) == layer.added.shape
        torch.testing.assert_close(layer.fused(x, weight, bias), layer(x, weight, bias), rtol=1e-13, atol=1e-13)


@CUDA
@DTYPES
@pytest.mark.parametrize("dirt", [0.0, float("nan")])
@torch.no_grad()
def test_cudnn_means_the_same(dtype, dirt):
    """To the rounding of products to 8 or 11 bits, also where the memory that is written to holds NaN."""
    for (layer, *args), (exact, *doubles) in zip(layers("cuda", dtype), layers(), strict=True):
        assert layer.has_fused_kernel(*args[:2])
        expected = exact(*doubles)
        blocks = [torch.full(expected.shape, dirt, dtype=dtype, device="cuda") for _ in range(8)]
        del blocks
        limit = 0.1 if dtype is torch.bfloat16 else 0.02
        torch.testing.assert_close(layer.fused(*args).double().cpu(), expected, rtol=limit, atol=limit)


@CUDA
@DTYPES
@torch.no_grad()
def test_cudnn_lets_nan_through(dtype):
    """A ReLU that turned NaN into 0 would hide that a path left where the model is defined."""
    for (layer, *args), (exact, *doubles) in zip(layers("cuda", dtype), layers(), strict=True):
        args[0][0, 0, 0, 0] = doubles[0][0, 0, 0, 0] = torch.nan
        reached = exact(*doubles).isnan()
        assert reached.any()
        assert layer.fused(*args).cpu().isnan()[reached].all()


@CUDA
@pytest.mark.parametrize("case", CAPTURED)
def test_the_plain_loop_on_a_gpu(case, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    make, x, _ = CAPTURED[case]
    models = [build(make, seed, x).float().cuda() for seed in (0, 1, 2)]
    x = x.float().cuda() if x.is_floating_point() else x.cuda()
    evaluate = over([(x, TARGETS.cuda())], F.cross_entropy)
    plain = interpolate(*models, evaluate, POINTS, fast=False)
    for batched in (None, False):
        fast = interpolate(*models, evaluate, POINTS, batched=batched)
        torch.testing.assert_close(fast.values, plain.values, rtol=1e-5, atol=1e-5)


def test_kernels_are_laid_out_for_a_gpu():
    """Lines share a fixed tensor before and after; values and shapes stay, also with replicas in front."""
    kernel, stacked, bias = torch.randn(8, 4, 3, 3), torch.randn(2, 3, 8, 4, 3, 3), torch.randn(2, 8)
    lines = [Points(torch.eye(2).double(), {"w": stacked.clone(), "b": bias}, {"k": kernel}) for _ in range(2)]
    _use_channels_last(lines, {"w", "k"})
    assert lines[0].fixed["k"] is lines[1].fixed["k"]
    assert torch.equal(lines[0].fixed["k"], kernel)
    moved = lines[0].moving(torch.tensor([0.25, 0.75]))
    assert moved["w"][2].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(moved["w"], 0.25 * stacked[0] + 0.75 * stacked[1])
    assert torch.equal(lines[0].anchors["b"], bias)
