"""Cross-sections of a planar classifier: its predictions, their gradients, how smoothly classes meet (Fig. 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp

Predict = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Section:
    """Predictions along a line; everything but ``position`` is (P,), or (R, P) for R classifiers.

    Attributes:
        position: (P,), the coordinate along the line.
        values: the predictions.
        gradients: their derivatives along the line.
    """

    position: Tensor
    values: Tensor
    gradients: Tensor

    @property
    def steepest(self) -> Tensor:
        """max |∂p|, per classifier."""
        return self.gradients.abs().amax(-1)

    @property
    def variation(self) -> Tensor:
        """Σ |Δp| between neighbouring points, per classifier: the number of complete transitions crossed."""
        return self.values.diff(dim=-1).abs().sum(-1)

    def widths(self, low: float = 0.1, high: float = 0.9) -> list[Tensor]:
        """For each classifier, the widths of its class transitions: from one of ``low``, ``high`` to the other.

        Crossings are interpolated linearly. A prediction that turns back half-way is no transition, so a
        classifier that never gets from one side to the other has none.
        """
        if not low < high:
            raise ValueError(f"low must be below high, got {low} and {high}")
        rows = self.values.reshape(-1, self.values.shape[-1])
        return [_widths(self.position.double().cpu(), row.double().cpu(), low, high) for row in rows]


def cross_section(
    predict: Predict,
    axis: str = "x",
    at: float = 0.0,
    bounds: tuple[float, float] = (-1.5, 1.5),
    points: int = 1001,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Section:
    """Predictions and their exact derivatives along the horizontal (``axis="x"``, y = at) or vertical line.

    Args:
        predict: (N, 2) → (N,), or (R, N) for R classifiers; differentiable by torch.
    """
    if axis not in ("x", "y"):
        raise ValueError(f"axis must be 'x' or 'y', got {axis!r}")
    low, high = bounds
    if points < 2 or not low < high:
        raise ValueError(f"a section needs 2 points and increasing bounds, got {points} and {bounds}")
    position = torch.linspace(low, high, points, dtype=dtype or torch.get_default_dtype(), device=device)
    rest = torch.full_like(position, at)
    columns = [position, rest] if axis == "x" else [rest, position]
    along = [torch.ones_like(position), torch.zeros_like(position)]
    tangent = torch.stack(along if axis == "x" else along[::-1], 1)
    result: tuple[Tensor, ...] = jvp(predict, (torch.stack(columns, 1),), (tangent,))
    values, gradients = result[0], result[1]
    if values.ndim not in (1, 2) or values.shape[-1] != points:
        raise ValueError(
            f"predict gave shape {tuple(values.shape)} for {points} positions; it must give (N,) or (R, N)"
        )
    return Section(position, values.detach(), gradients.detach())


def _widths(x: Tensor, y: Tensor, low: float, high: float) -> Tensor:
    """Distances between leaving one side and reaching the other."""
    found = []
    came_from, left = 0, 0.0  # the last side (−1 below low, +1 above high), and where the prediction left it
    for i in range(len(y)):
        side = -1 if y[i] <= low else 1 if y[i] >= high else 0
        if side and came_from == -side:
            bound = low if side < 0 else high
            found.append(_crossing(x, y, i - 1, bound) - left)
        if side:
            came_from = side
            if i + 1 < len(y):
                left = _crossing(x, y, i, low if side < 0 else high)
    return torch.tensor(found, dtype=torch.float64)


def _crossing(x: Tensor, y: Tensor, i: int, bound: float) -> float:
    """Where the line between points i and i + 1 meets ``bound``; point i if it does not."""
    step = float(y[i + 1] - y[i])
    share = (bound - float(y[i])) / step if step else 0.0
    return float(x[i] + min(max(share, 0.0), 1.0) * (x[i + 1] - x[i]))
