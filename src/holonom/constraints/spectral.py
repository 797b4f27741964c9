"""Spectral: a bound on the largest singular value of a weight."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from .._step.integrate import Phase
from ..errors import ConstraintError
from .base import Landing, Traits, widened
from .matrices import Matrices, decomposed
from .views import View


class Spectral(Matrices):
    r"""Keep the largest singular value of a matrix at σ ≤ c.

    The nearest matrix of that set to W = UΣVᵀ is U min(Σ, c) Vᵀ. The set is not smooth where several singular values
    equal c. So there are no dynamics on it: :class:`holonom.Langevin` refuses it. It is for
    ``holonom.constrain(optimizer, model, rules, update="plain")``.

    Args:
        bound: c.
        view: how a parameter is read as matrices, as for :class:`~holonom.constraints.Orthogonal`.
        per: which part is bounded by itself, "block", "matrix" or "head", as for ``Orthogonal``.
    """

    can_be = "bounded so"
    traits = Traits(rowwise=False, stacked=True, geodesic=False, can_fail=True)
    has_initialiser = False
    has_dynamics = False
    is_bound = True

    def __init__(self, bound: float, view: View | str | None = "auto", *, per: str = "block") -> None:
        if not isinstance(bound, Real) or isinstance(bound, bool) or not 0 < bound < math.inf:
            raise ConstraintError(f"Spectral: bound must be a positive number, got {bound!r}")
        self.bound: float = float(bound)
        self._set_per(per, ("matrix", "head", "block"))
        self._set_view(view)

    def __repr__(self) -> str:
        per = f", per={self.per!r}" if self.per != "block" else ""
        return f"Spectral(bound={self.bound!r}, view={self.block_view!r}{per})"

    def land_(self, q: Tensor, name: str) -> Landing:
        block = self.view(q)
        clipped, excess = self._clipped(block.double(), f"Spectral on {name}")
        # Weights whose singular values are at the bound to rounding stay as they are, bit for bit.
        moved = excess.amax(-1) > 16 * torch.finfo(q.dtype).eps * self.bound
        self.write_(q, torch.where(moved[..., None, None], clipped.to(q.dtype), block))
        distance = torch.linalg.vector_norm(excess, dim=-1) * moved
        return Landing(int(moved.sum()), moved.numel(), distance.max().item())

    def _clipped(self, block: Tensor, place: str) -> tuple[Tensor, Tensor]:
        """U min(Σ, c) Vᵀ, and what was cut off the singular values."""
        u, sigma, vh = decomposed(block, place)
        excess = (sigma - self.bound).clamp_min(0)
        return block - (u * excess[..., None, :]) @ vh, excess

    def nearest_(self, x: Phase) -> None:
        x.q.copy_(self._clipped(widened(x.q), "Spectral on a moved weight")[0])

    def residual(self, x: Phase) -> Tensor:
        q = widened(x.q)
        if not bool(q.isfinite().all()):
            return q.new_tensor(torch.nan)
        largest: Tensor = torch.linalg.matrix_norm(q, ord=2)
        return (largest / self.bound - 1).clamp_min(0).max()
