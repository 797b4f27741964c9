"""The weights and gradients that are stepped, and the constraint errors they are left with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

Shape = tuple[int, ...]


def perceptron_shapes(*widths: int) -> list[Shape]:
    """Weights and biases of a fully connected network."""
    return [shape for i, o in pairwise(widths) for shape in ((o, i), (o,))]


def resnet34_shapes(classes: int = 10, stem: int = 3) -> list[Shape]:
    """The 36 convolutions and the classifier of a ResNet-34; ``stem=3`` is the network for 32×32 images."""
    shapes: list[Shape] = [(64, 3, stem, stem)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, inputs if block == 0 else width, 3, 3), (width, width, 3, 3)]
            if block == 0 and width != inputs:
                shapes.append((width, inputs, 1, 1))
        inputs = width
    return [*shapes, (classes, 512)]


BATCH = 256  # inputs of a layer


@cache
def activations(width: int, layer: int, number: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * layer + number)
    return torch.randn(BATCH, width, generator=generator).to(device)


def through_layer(weight: Tensor, gradient: Tensor, layer: int, number: int) -> Tensor:
    """The given gradient, where a forward and a backward pass through a layer has just written that of its weight.

    A convolution's weight is used on patches, and a vector is taken for a bias, whose gradient costs nothing.
    """
    if weight.ndim == 1:
        return gradient.clone()
    leaf = weight.detach().requires_grad_()
    matrix = leaf.flatten(1) if leaf.ndim == 4 else leaf
    device = str(weight.device)
    inputs = activations(matrix.shape[-1], layer, number, device).clone().requires_grad_()
    with torch.enable_grad():
        outputs = inputs @ matrix.mT
    above = activations(matrix.shape[-2], layer, number + 1, device).expand_as(outputs)
    written, _ = torch.autograd.grad(outputs, (leaf, inputs), above)
    return written.copy_(gradient)


class Problem:
    """Starting weights and a few gradients that are shown in turn, the same to every contender.

    Several gradients, because with a single one an optimizer soon sits at the optimum of a linear
    loss, where an iterative projection has little left to do.

    Back to back, the steps of a small model run from the caches. In ``training`` a forward and a backward pass
    through a layer with each of the weights comes before every step, as it does for everybody who trains;
    what is stepped is the same.
    """

    device = "cpu"  # of all problems
    training = False

    def __init__(self, start: Sequence[Tensor], gradient_norm: float | None = None, gradients: int = 4) -> None:
        generator = torch.Generator().manual_seed(1)
        self.start = [w.to(self.device) for w in start]
        self.gradients: list[list[Tensor]] = []
        for _ in range(gradients):
            drawn = [torch.randn(w.shape, generator=generator).to(self.device) for w in self.start]
            if gradient_norm is not None:
                drawn = [g * (gradient_norm / g.norm()) for g in drawn]
            self.gradients.append(drawn)

    def stacked(self) -> Problem:
        """Weights of one shape as a single tensor, for libraries that batch nothing themselves."""
        other = Problem([torch.stack(self.start)], gradients=0)
        other.gradients = [[torch.stack(gradients)] for gradients in self.gradients]
        return other

    def parameters(self) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(w.clone()) for w in self.start]

    def gradient(self, i: int, weights: Sequence[Tensor] | None = None) -> list[Tensor]:
        """The gradients of step i; in training, those of the given weights, or else of the first ones."""
        gradients = self.gradients[i % len(self.gradients)]
        if not self.training:
            return gradients
        weights = self.start if weights is None else weights
        number = i % len(self.gradients)
        return [through_layer(w, g, layer, number) for layer, (w, g) in enumerate(zip(weights, gradients))]

    def loader(self, params: Sequence[Tensor]) -> Callable[[int], None]:
        """What puts the i-th gradients where an optimizer looks for them."""

        def load(i: int) -> None:
            for p in params:
                p.grad = None  # as zero_grad() does
            for p, g in zip(params, self.gradient(i, params)):
                p.grad = g

        return load


def uniform(shapes: Sequence[Shape], bound: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.rand(shape, generator=generator) * 2 - 1) * bound for shape in shapes]


def unit_rows(rows: int, columns: int) -> list[Tensor]:
    return [torch.nn.functional.normalize(torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)))]


def orthogonal(shapes: Sequence[Shape]) -> list[Tensor]:
    """Weights whose (out, everything else) matrix has orthonormal columns, or rows if it is wide."""
    generator = torch.Generator().manual_seed(0)
    weights = []
    for shape in shapes:
        matrix = torch.randn(shape, generator=generator, dtype=torch.float64).flatten(1)
        wide = matrix.shape[0] < matrix.shape[1]
        q, _ = torch.linalg.qr(matrix.mT if wide else matrix)
        weights.append((q.mT if wide else q).reshape(shape).float().contiguous())
    return weights


@torch.no_grad()
def orthogonality_error(weights: Sequence[Tensor]) -> float:
    """max|QᵀQ − I| over the tall orientation of all weights, in float64."""
    worst = 0.0
    for weight in weights:
        matrix = weight.detach().double().flatten(1)
        tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
        worst = max(
            worst,
            float((tall.mT @ tall - torch.eye(tall.shape[1], dtype=torch.float64, device=tall.device)).abs().max()),
        )
    return worst


@torch.no_grad()
def circle_error(weights: Sequence[Tensor], turns: Sequence[Tensor], radius: float) -> float:
    """max|√(θ² + ξ²)/r − 1| in float64, with ξ = r cos φ from the state's φ/2π."""
    worst = 0.0
    for weight, turn in zip(weights, turns):
        squared = (weight.detach().double() / radius).square() + torch.cos(2 * math.pi * turn.double()).square()
        worst = max(worst, float((squared.sqrt() - 1).abs().max()))
    return worst


@torch.no_grad()
def sphere_error(weights: Sequence[Tensor], slacks: Sequence[Tensor], radius: float) -> float:
    """max|‖(w, ξ)‖/r − 1| over rows in float64; without slack the second list is empty."""
    worst = 0.0
    for i, weight in enumerate(weights):
        squared = weight.detach().double().square().sum(-1, keepdim=True)
        if slacks:
            squared = squared + slacks[i].double().square()
        worst = max(worst, float((squared.sqrt() / radius - 1).abs().max()))
    return worst


def resnet50_shapes() -> list[Shape]:
    """All 161 parameters of torchvision's ResNet-50, norms included."""
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions = [(width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                convolutions.append((4 * width, inputs, 1, 1))
            shapes += [shape for kernel in convolutions for shape in (kernel, kernel[:1], kernel[:1])]
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def gpt2_shapes(layers: int = 12, width: int = 768) -> list[Shape]:
    """All 148 parameters of GPT-2 (124M), matrices as (out, in)."""
    shapes: list[Shape] = [(50257, width), (1024, width)]
    for outputs, inputs in [(3, 1), (1, 1), (4, 1), (1, 4)] * layers:
        norm = [(width,), (width,)] if (outputs, inputs) in ((3, 1), (4, 1)) else []
        shapes += [*norm, (outputs * width, inputs * width), (outputs * width,)]
    return [*shapes, (width,), (width,)]
