"""Points of a line, a plane or a curve through weight space, computed only when needed.

A point is a weighted sum of a few anchor states, θ = Σ cₖ θₖ: (1 − α, α) on a line, (a, b, 1) in a plane spanned by
two directions. The anchors are stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Curve = Callable[[Tensor], Tensor]


@dataclass
class Points:
    """P states of one model.

    Args:
        coefficients: (P, K), float64: the coefficients of every point.
        anchors: by name, (K, [R,] *shape): tensors that are weighted sums of anchors.
        fixed: by name, ([R,] *shape): tensors that are equal at all points.
        curves: by name, a function from rows of ``coefficients`` to (p, [R,] *shape): tensors that follow a curve.
    """

    coefficients: Tensor
    anchors: dict[str, Tensor]
    fixed: dict[str, Tensor] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.coefficients)

    @property
    def on_line(self) -> bool:
        """Whether every point lies on the line through two anchors: (1 − α) θ₀ + α θ₁."""
        return self.coefficients.shape[1] == 2 and bool((self.coefficients.sum(1) - 1).abs().max() < 1e-12)

    @property
    def bytes_per_point(self) -> int:
        return sum(x[0].numel() * x.element_size() for x in self.anchors.values())

    def state(self, coefficients: Tensor) -> dict[str, Tensor]:
        """The whole state for one row of coefficients, in new memory."""
        return self.moving(coefficients) | {name: x.clone() for name, x in self.fixed.items()}

    def moving(self, coefficients: Tensor) -> dict[str, Tensor]:
        """The tensors that differ between points, for one row of coefficients."""
        numbers, on_line = coefficients.tolist(), self.on_line
        sums = {name: combine(numbers, x, on_line) for name, x in self.anchors.items()}
        return sums | {name: curve(coefficients[None])[0] for name, curve in self.curves.items()}


def combine(coefficients: Sequence[float] | Tensor, anchors: Tensor, on_line: bool = False) -> Tensor:
    """Σ cₖ anchorₖ; exact where one coefficient is 1 and the others 0. Half precision is summed in float32."""
    wide = anchors if anchors.dtype.itemsize >= 4 else anchors.float()
    if isinstance(coefficients, Tensor):
        coefficients = coefficients.to(wide.dtype)
    if on_line:
        return torch.lerp(wide[0], wide[1], coefficients[1]).to(anchors.dtype)
    if isinstance(coefficients, Tensor) and not wide.is_cuda:  # one pass; a GPU might round products to TF32
        return (coefficients @ wide.flatten(1)).reshape(wide.shape[1:]).to(anchors.dtype)
    total = coefficients[0] * wide[0]
    for k in range(1, len(wide)):
        total = total + coefficients[k] * wide[k]
    return total.to(anchors.dtype)


def mix(states: list[dict[str, Tensor]], coefficients: Tensor, moving: set[str] | None = None) -> Points:
    """Weighted sums of ``states``; names outside ``moving`` stay at the last state.

    Integers (batch norm's counter) cannot be summed and stay at the last state, too. A tensor that is equal in all
    states is fixed, provided the coefficients of every point add up to 1.
    """
    affine = bool((coefficients.sum(1) - 1).abs().max() < 1e-12)
    anchors, fixed = {}, {}
    for name, x in states[-1].items():
        values = [state[name] for state in states]
        equal = affine and all(torch.equal(x, other) for other in values[:-1])
        if equal or not x.is_floating_point() or (moving is not None and name not in moving):
            fixed[name] = x
        else:
            anchors[name] = torch.stack(values)
    return Points(coefficients.double(), anchors, fixed)
