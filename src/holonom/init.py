"""The papers' initialisations: on the manifold from the start. All draw from the generator given."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .constraints import Circle, Orthogonal, Sphere, View


@torch.no_grad()
def uniform_(weight: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """U(−1/√N_in, 1/√N_in), PyTorch's own for linear layers, which the papers start every run from."""
    bound = 1 / math.sqrt(max(1, weight[0].numel() if weight.ndim > 1 else weight.numel()))
    return weight.uniform_(-bound, bound, generator=generator)


@torch.no_grad()
def gaussian_(weight: Tensor, std: float = 0.01, generator: torch.Generator | None = None) -> Tensor:
    """N(0, std²): what the thesis starts AdLaLa and LOL from (Figs. 3.9, 3.14)."""
    return weight.normal_(0.0, std, generator=generator)


@torch.no_grad()
def circle_(weight: Tensor, space: Circle, generator: torch.Generator | None = None) -> Tensor:
    """Uniform on the circles: θ = r sin φ with φ uniform, the law a circle has without a loss."""
    angle = torch.empty_like(weight).uniform_(-math.pi, math.pi, generator=generator)
    limit = 1 - space.margin
    radius = space.radius.to(weight) if isinstance(space.radius, Tensor) else space.radius
    return weight.copy_(radius * torch.sin(angle).clamp(-limit, limit))


@torch.no_grad()
def sphere_(weight: Tensor, space: Sphere, generator: torch.Generator | None = None) -> Tensor:
    """Uniform on the spheres; with slack, the weights are all but one of the sphere's coordinates."""
    space.check(weight, "the weight")
    rows = space.view(weight)
    draw = torch.empty_like(rows).normal_(generator=generator)
    norm = draw.square().sum(-1, keepdim=True)
    if space.has_slack:
        norm = norm + torch.empty_like(norm).normal_(generator=generator).square()
    radius = space.radius.to(rows)[..., None] if isinstance(space.radius, Tensor) else space.radius
    space.write_(weight, draw * (radius / norm.sqrt()))
    space.land_(weight, "the weight")
    return weight


@torch.no_grad()
def orthogonal_(weight: Tensor, view: View | str | None = "auto", generator: torch.Generator | None = None) -> Tensor:
    """A Haar-random orthogonal matrix (Saxe et al.), tall, wide or square; ``view`` as in ``Orthogonal``."""
    space = Orthogonal(view)
    space.check(weight, "the weight")
    block = space.matrices(weight)
    precision = torch.promote_types(block.dtype, torch.float32)  # torch has no QR in half precision
    flat = torch.empty_like(block, dtype=precision).reshape(-1, *block.shape[-2:])
    for matrix in flat:
        nn.init.orthogonal_(matrix, generator=generator)
    space.write_(weight, flat.reshape(block.shape))
    return weight
