"""Curvature of a planar classifier's boundary (thesis 4.7.3.3, Tables 4.1 and 4.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[np.float64]]
Predict = Callable[[Tensor], Tensor]

MAX_ON_DEVICE = 1 << 28  # values of fields that stay on a GPU: 1 GiB in single precision


class CurvatureSummary(NamedTuple):
    """The columns of Table 4.1: ``mean`` and ``std`` averaged over classifiers, ``max`` over all of them.

    ``classifiers`` have a boundary; those without one count in ``without`` and in nothing else.
    """

    mean: float
    std: float
    max: float
    classifiers: int
    without: int


def boundary_curvature(
    predict: Predict,
    bounds: tuple[float, float] = (-1.5, 1.5),
    grid: int = 1000,
    level: float = 0.5,
    *,
    method: str = "level",
    chunk: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Array:
    r"""|κ| at the points where the contour ``predict`` = ``level`` crosses the lines of a grid.

    ``method="level"`` is the curvature of a level curve φ = 0,

    .. math:: κ = \frac{φ_{xx} φ_y^2 - 2 φ_x φ_y φ_{xy} + φ_{yy} φ_x^2}{(φ_x^2 + φ_y^2)^{3/2}},

    with central differences of the field on the grid, interpolated to the contour's points. Its error
    falls with the square of the spacing h; on a polygon (a ReLU network) a corner of angle α appears
    as a bend of length ~h whose ∫|κ|ds is α within a factor of two, at any h. A grid cannot show a
    radius below h, so |κ| is capped at 1/h. Where all values lie in [0, 1] the field is taken in
    log-odds: the curve is the same, and a transition that is steep on the grid is still resolved. If
    you have logits, return them and set ``level=0``.

    ``method="points"`` is what the thesis computed, (4.60) from differences of consecutive contour
    points, |x''y' − x'y''| / (x'² + y'²)^{3/2}, neither capped nor smoothed. The points are unevenly
    spaced and each is off by O(h²), so it does *not* converge as the grid is refined, and near-equal
    points give the huge maxima of Table 4.1. Use it to compare with that table only.

    Args:
        predict: (N, 2) positions → (N,) values.
        bounds: of the square [low, high]² that the grid covers.
        grid: nodes per side.
        level: the value on the boundary.
        method: "level" or "points".
        chunk: positions per call of ``predict``; by default few enough for a processor's cache, many on a GPU.
        dtype: of the positions; float64 where the last digits matter.
        device: of the positions.

    Returns:
        |κ| at every contour point, float64; empty where there is no boundary. Points in the outermost
        ring of cells are left out, because central differences need neighbours.
    """
    values = _evaluate(predict, bounds, grid, chunk, dtype, device)
    if values.ndim != 2:
        raise ValueError(
            f"predict gave {tuple(values.flatten(-2).shape)} in all; for (R, N) values use boundary_curvatures"
        )
    return _curvature(values, bounds, level, method)


def boundary_curvatures(
    predict: Predict,
    bounds: tuple[float, float] = (-1.5, 1.5),
    grid: int = 1000,
    level: float = 0.5,
    *,
    method: str = "level",
    chunk: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> list[Array]:
    """:func:`boundary_curvature` of R classifiers at once: ``predict`` maps (N, 2) to (R, N).

    Returns:
        one array for each classifier, in order.
    """
    values = _evaluate(predict, bounds, grid, chunk, dtype, device)
    if values.ndim != 3:
        raise ValueError(f"predict must give (R, N) values, all together they are {tuple(values.flatten(-2).shape)}")
    return [_curvature(field, bounds, level, method) for field in values]


def mean_curvature(curvatures: Array | Sequence[Array]) -> float:
    """Mean over a boundary's points, then over the classifiers that have one; NaN if none has."""
    return curvature_summary(curvatures).mean


def curvature_summary(curvatures: Array | Sequence[Array]) -> CurvatureSummary:
    """Mean, standard deviation and maximum in the sense of Table 4.1.

    The mean and the standard deviation of every classifier's points are averaged over classifiers.
    (The thesis does not say so, but its numbers do: pooling N points gives a standard deviation of at
    least max/√N, which Table 4.1's maxima exceed for any number of points its grid can have.)
    """
    runs = [curvatures] if isinstance(curvatures, np.ndarray) else list(curvatures)
    bent = [run for run in runs if len(run)]
    if not bent:
        return CurvatureSummary(np.nan, np.nan, np.nan, 0, len(runs))
    mean, std = (float(np.mean([f(run) for run in bent])) for f in (np.mean, np.std))
    return CurvatureSummary(mean, std, max(float(run.max()) for run in bent), len(bent), len(runs) - len(bent))


@torch.no_grad()
def _evaluate(
    predict: Predict,
    bounds: tuple[float, float],
    grid: int,
    chunk: int | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> Tensor:
    """The field on the grid, (…, grid, grid), y outside and x inside."""
    low, high = bounds
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"bounds must be finite and increasing, got {bounds}")
    if grid < 5 or (chunk is not None and chunk < 1):
        raise ValueError(f"grid must be at least 5 and chunk at least 1, got {grid} and {chunk}")
    axis = torch.linspace(low, high, grid, dtype=torch.float64).to(dtype or torch.get_default_dtype()).to(device)
    total = grid * grid
    values: Tensor | None = None
    start = 0
    while start < total:
        # The first call is small: its shape gives the number of classifiers.
        stop = min(start + (chunk or (16 if values is None else _fitting(values, axis.device))), total)
        index = torch.arange(start, stop, device=device)
        piece = torch.as_tensor(predict(torch.stack([axis[index % grid], axis[index // grid]], 1)))
        if piece.ndim not in (1, 2) or piece.shape[-1] != len(index):
            raise ValueError(
                f"predict gave shape {tuple(piece.shape)} for {len(index)} positions; it must give ({len(index)},), "
                f"or (R, {len(index)}) for R classifiers"
            )
        if values is None:
            fits = piece.is_cuda and piece[..., 0].numel() * total <= MAX_ON_DEVICE
            values = torch.empty(*piece.shape[:-1], total, dtype=piece.dtype, device=piece.device if fits else "cpu")
        values[..., start:stop] = piece
        start = stop
    assert values is not None
    bad = int(values.numel() - values.isfinite().sum())
    if bad:
        raise ValueError(f"predict gave {bad} values that are NaN or infinite; the boundary is not defined there")
    return values.view(*values.shape[:-1], grid, grid)


def _fitting(values: Tensor, device: torch.device) -> int:
    """Positions per call: classifiers × positions is best near 4096 on a processor (measured), far larger on a GPU."""
    classifiers = values.numel() // values.shape[-1]
    return max(16, (4096 if device.type == "cpu" else 1 << 20) // max(classifiers, 1))


def _curvature(field: Tensor, bounds: tuple[float, float], level: float, method: str) -> Array:
    if method not in ("level", "points"):
        raise ValueError(f"method must be 'level' or 'points', got {method!r}")
    spacing = (bounds[1] - bounds[0]) / (len(field) - 1)
    if method == "points":
        lines = _lines(field.double().cpu().numpy(), level)
        return np.concatenate([np.empty(0), *map(_of_points, lines)]) / spacing
    bend: Array = _of_level_curve(field, level).cpu().numpy()
    return bend / spacing


def _of_level_curve(field: Tensor, level: float) -> Tensor:
    """|κ| of the field's level curves where they cross the grid's lines, in units of 1/spacing; at most 1."""
    read = _reader(field, level)
    points = torch.cat([_crossings(field, read, level), _crossings(field.T, read, level).flip(0)], 1)
    corner = points.floor().long()
    inner = ((corner >= 1) & (corner < len(field) - 2)).all(0)
    (y, x), corner = (points - corner)[:, inner], corner[:, inner]
    near = torch.arange(-1, 3, device=field.device)
    rows, columns = (at[:, None] + near for at in corner)
    f = read(field[rows[:, :, None], columns[:, None, :]])  # the 4 × 4 nodes around a cell
    # Second-order central differences at the cell's four nodes, interpolated to the point.
    middle, left, right, down, up = (f[:, i : i + 2, j : j + 2] for i, j in ((1, 1), (1, 0), (1, 2), (0, 1), (2, 1)))
    cross = f[:, 2:, 2:] - f[:, 2:, :2] - f[:, :2, 2:] + f[:, :2, :2]
    nodes = [(right - left) / 2, (up - down) / 2, right - 2 * middle + left, up - 2 * middle + down, cross / 4]
    weights = torch.stack([1 - y, y], 1)[:, :, None] * torch.stack([1 - x, x], 1)[:, None, :]
    f_x, f_y, f_xx, f_yy, f_xy = ((weights * at_nodes).sum((1, 2)) for at_nodes in nodes)
    bend = (f_xx * f_y**2 - 2 * f_x * f_y * f_xy + f_yy * f_x**2).abs() / torch.hypot(f_x, f_y) ** 3
    # A flat field has no direction, and a rough one is finer than the grid: both get the largest value a grid can show.
    return torch.where(bend <= 1, bend, 1.0)


def _crossings(field: Tensor, read: Callable[[Tensor], Tensor], level: float) -> Tensor:
    """(2, n) places between two neighbours of a row where the level is crossed: row, column."""
    above = field > level
    row, column = (above[:, 1:] != above[:, :-1]).nonzero(as_tuple=True)
    before, behind = read(field[row, column]), read(field[row, column + 1])
    middle = read(torch.tensor(level, dtype=torch.float64, device=field.device))
    return torch.stack([row.double(), column + (middle - before) / (behind - before)])


def _reader(field: Tensor, level: float) -> Callable[[Tensor], Tensor]:
    """How values are read, in double precision: probabilities as log-odds, clipped where their precision ends."""
    low, high = field.aminmax()
    if not (0 < level < 1 and low >= 0 and high <= 1):
        return torch.Tensor.double
    least = torch.finfo(field.dtype).eps / 2
    return lambda x: torch.logit(x.double(), least)


def _lines(field: Array, level: float) -> list[Array]:
    """Contour lines, in units of the grid's spacing."""
    try:
        from contourpy import LineType, contour_generator
    except ImportError:
        raise ImportError("contour lines need contourpy: pip install contourpy (matplotlib brings it)") from None
    lines = contour_generator(z=field, name="serial", line_type=LineType.Separate).lines(level)
    return [np.asarray(line, dtype=np.float64) for line in lines]


def _of_points(line: Array) -> Array:
    """(4.60) along one contour line, in units of 1/spacing; points that do not move are left out."""
    if len(line) < 3:
        return np.empty(0)
    first = np.gradient(line, axis=0, edge_order=2)
    second = np.gradient(first, axis=0, edge_order=2)
    speed = np.hypot(first[:, 0], first[:, 1])
    moving = speed > 0
    turn = second[:, 0] * first[:, 1] - first[:, 0] * second[:, 1]
    bend: Array = np.abs(turn[moving]) / speed[moving] ** 3
    return bend
