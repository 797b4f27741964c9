"""Free: flat space, no constraint at all."""

from __future__ import annotations

import torch
from torch import Tensor

from .._step.integrate import Normals, Phase, Scalar, add_scaled_
from .base import Constraint, Traits


class Free(Constraint):
    """No constraint: A is q += h·p, B is p −= h·∇L, L is Euler–Maruyama."""

    traits = Traits(elementwise=True)
    has_virial = True

    def __repr__(self) -> str:
        return "Free()"

    def view(self, q: Tensor) -> Tensor:
        return q

    def project_(self, x: Phase, p: Tensor, slack_p: Tensor | None = None) -> None:
        pass

    def kick_(self, x: Phase, force: Tensor, h: Scalar) -> None:
        add_scaled_(x.p, force, -h)

    def drift_(self, x: Phase, h: Scalar) -> None:
        add_scaled_(x.q, x.p, h)

    def descend_(self, x: Phase, force: Tensor, h: Scalar, normals: Normals | None, size: Scalar) -> None:
        add_scaled_(x.q, force, -h)
        if normals is not None:
            add_scaled_(x.q, normals[0], size)

    def nearest_(self, x: Phase) -> None:
        pass

    def project_step_(self, x: Phase, step: Tensor) -> None:
        pass

    def norms(self, x: Phase) -> Tensor:
        return x.q.abs()

    def holds(self, x: Phase, precision: torch.dtype) -> bool:
        return True

    def virial(self, x: Phase, force: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """The virial theorem, f = q − q₀: ⟨(q − q₀)·∇U⟩ = Nτ."""
        virial = ((x.q - reference) * force).sum(dtype=torch.float64)
        return virial, torch.full_like(virial, x.q.numel())

    def finish_(self, x: Phase, hint: object, polish: bool) -> None:
        pass
