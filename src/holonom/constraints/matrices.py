"""Spaces of matrices: parameters as tall matrices, stacked where they are several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from .._step.integrate import Phase
from ..errors import ConstraintError
from .views import View, Viewed

M = TypeVar("M", bound="Matrices")


def decomposed(q: Tensor, place: str) -> tuple[Tensor, Tensor, Tensor]:
    """U, Σ and Vᵀ of matrices; ``place`` is what an error calls them."""
    try:
        u, sigma, vh = torch.linalg.svd(q, full_matrices=False)
    except LinAlgError as error:
        if bool(q.isfinite().all()):
            raise
        raise ConstraintError(
            f"{place}: the weights hold NaN or infinity and have no nearest point; lower lr, or clip gradients"
        ) from error
    return u, sigma, vh


class Matrices(Viewed):
    """A constraint on matrices that holds for the transpose, too: it reads parameters as (…, r, s) with r ≥ s."""

    can_be = "constrained so"  # of matrices, in a message
    block_dims = 2

    def with_view(self: M, view: View | str | None, ndim: int | None = None) -> M:
        if isinstance(view, View) and self.blocks_of(view) == 1 and ndim == view.batch + 2:
            view = replace(view, output=0)  # a matrix satisfies the constraint if its transpose does
        return super().with_view(view, ndim)

    def view(self, q: Tensor) -> Tensor:
        matrix = self.matrices(q)
        return matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT

    def write_(self, q: Tensor, block: Tensor) -> None:
        outputs = q.shape[-2] if self.reading is None else self.reading.outputs(q)
        super().write_(q, block if block.shape[-2] == outputs else block.mT)

    def check(self, q: Tensor, name: str) -> None:
        if q.ndim < 2:
            raise ConstraintError(
                f"{type(self).__name__} on {name} of shape {tuple(q.shape)}: only matrices can be {self.can_be}; leave "
                f"biases and norm weights in a group without a constraint (holonom.partition does that)"
            )
        self.check_view(q, name)

    def norms(self, x: Phase) -> Tensor:
        """Frobenius norms."""
        norms: Tensor = torch.linalg.vector_norm(x.q, dim=(-2, -1))
        return norms

    def reach(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.matrix_reach(shape, "matrix")
