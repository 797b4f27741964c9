"""The papers' initialisations: on the manifold from the start. All draw from the generator given."""

from __future__ import annotations

import copy
import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from .constraints import Circle, Orthogonal, Sphere, View
from .errors import ConstraintError

S = TypeVar("S", Orthogonal, Sphere)


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
    """Uniform on the spheres; with slack, the weights are all but one of the sphere's coordinates.

    A radius "initial" is the norm that a block has: it keeps that.
    """
    space.check(weight, "the weight")
    if space.radius is None and space.has_slack:
        raise ConstraintError(f"{space!r} has no radius before an optimizer is built: call holonom.init_(optimizer)")
    space = _at_its_norms(space, weight)
    rows = space.view(weight)
    draw = torch.empty_like(rows).normal_(generator=generator)
    norm = draw.square().sum(-1, keepdim=True)
    if space.has_slack:
        norm = norm + torch.empty_like(norm).normal_(generator=generator).square()
    space.write_(weight, draw * (space.radius_of(weight) / norm.sqrt()))
    space.land_(weight, "the weight")
    return weight


@torch.no_grad()
def orthogonal_(
    weight: Tensor, view: View | str | Orthogonal | None = "auto", generator: torch.Generator | None = None
) -> Tensor:
    """A Haar-random orthogonal matrix (Saxe et al.), tall, wide or square, times the scale of an ``Orthogonal``.

    ``view`` as in ``Orthogonal``, or one, whose scale "initial" keeps the norm that a block has.
    """
    space = view if isinstance(view, Orthogonal) else Orthogonal(view)
    space.check(weight, "the weight")
    space = _at_its_norms(space, weight)
    precision = torch.promote_types(weight.dtype, torch.float32)  # torch has no QR in half precision
    matrices = space.matrices(weight)
    flat = torch.empty_like(matrices, dtype=precision).reshape(-1, *matrices.shape[-2:])
    for matrix in flat:
        nn.init.orthogonal_(matrix, generator=generator)
    drawn = flat.reshape(matrices.shape)
    c = space.radius_of(drawn)
    space.write_(weight, drawn if c is None else drawn * c)
    return weight


def _at_its_norms(space: S, weight: Tensor) -> S:
    """The space with the radii that the weight has now, if it takes them from initial weights."""
    if not space.takes_sizes:
        return space
    now = copy.copy(space)
    now.factor = 1.0  # an optimizer applies it
    return now.held_at(now.sizes(weight, "the weight"))
