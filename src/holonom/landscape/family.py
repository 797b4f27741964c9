"""Families of states: points of a line, a plane or a curve through weight space, combined only when needed.

A point is a weighted sum of a few anchors, θ = Σ wₖ θₖ: (1 − α, α) on a line, (1, a, b) in a plane
spanned by two directions. Anchors are kept once; a point's tensors are made chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Curve = Callable[[Tensor], Tensor]


@dataclass
class Family:
    """P states of one model.

    Args:
        weights: (P, K), float64: the coefficients of every point.
        anchors: by name, (K, [R,] *shape); what is a combination of anchors.
        fixed: by name, ([R,] *shape); what all points share.
        curves: by name, a function from rows of ``weights`` to (p, [R,] *shape); what follows a curve of its own.
    """

    weights: Tensor
    anchors: dict[str, Tensor]
    fixed: dict[str, Tensor] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def on_a_line(self) -> bool:
        """Whether every point lies on the line through two anchors: (1 − α) θ₀ + α θ₁."""
        return self.weights.shape[1] == 2 and bool((self.weights.sum(1) - 1).abs().max() < 1e-12)

    @property
    def bytes_per_point(self) -> int:
        return sum(x[0].numel() * x.element_size() for x in self.anchors.values())

    def point(self, weights: Tensor) -> dict[str, Tensor]:
        """The whole state at one row of coefficients, in new memory."""
        state = self.mixed(weights)
        state |= {name: curve(weights[None])[0] for name, curve in self.curves.items()}
        return state | {name: x.clone() for name, x in self.fixed.items()}

    def mixed(self, weights: Tensor) -> dict[str, Tensor]:
        """The combinations of anchors at one row of coefficients, in a few passes over all tensors together."""
        if not self.anchors:
            return {}
        wide = [x if x.dtype.itemsize >= 4 else x.float() for x in self.anchors.values()]
        first, *others = weights.tolist()
        totals = list(torch._foreach_mul([x[0] for x in wide], first))
        for k, weight in enumerate(others, 1):
            torch._foreach_add_(totals, [x[k] for x in wide], alpha=weight)
        return {name: total.to(x.dtype) for (name, x), total in zip(self.anchors.items(), totals, strict=True)}


def combine(weights: Tensor, anchors: Tensor, on_a_line: bool = False) -> Tensor:
    """Σ wₖ anchorₖ, half precision summed in float32; exact where one weight is 1 and the others 0.

    On a line one pass over memory. Elsewhere, on a CPU, a matrix product; not on a GPU, where it may be rounded
    to TF32.
    """
    wide = anchors if anchors.dtype.itemsize >= 4 else anchors.float()
    own = weights.to(wide.device, wide.dtype)
    if on_a_line:
        return torch.lerp(wide[0], wide[1], own[1]).to(anchors.dtype)
    if wide.device.type == "cpu":
        return (own @ wide.flatten(1)).reshape(wide.shape[1:]).to(anchors.dtype)
    total = own[0] * wide[0]
    for k in range(1, len(wide)):
        total = torch.addcmul(total, own[k], wide[k])
    return total.to(anchors.dtype)


def mixture(states: list[dict[str, Tensor]], weights: Tensor, moving: set[str] | None = None) -> Family:
    """The family of weighted sums of ``states``; names outside ``moving`` stay at the last state.

    Whole numbers (batch-norm's counter) cannot be mixed and stay at the last state, too. What is equal in
    all states is shared instead of mixed, if the weights of a point add up to 1.
    """
    last = states[-1]
    affine = bool((weights.sum(1) - 1).abs().max() < 1e-12)
    anchors, fixed = {}, {}
    for name, x in last.items():
        own = [state[name] for state in states]
        still = affine and all(torch.equal(x, other) for other in own[:-1])
        if still or not x.is_floating_point() or (moving is not None and name not in moving):
            fixed[name] = x
        else:
            anchors[name] = torch.stack(own)
    return Family(weights.double(), anchors, fixed)
