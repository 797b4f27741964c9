"""The reference integrator: one stage of a program on one tensor, and the backend that runs it tensor by tensor.

Every other backend is compared with this one. A stage is the part of a program between two E's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..errors import ConstraintError, ProjectionError

if TYPE_CHECKING:
    from ..constraints.base import Constraint
    from .buckets import Bucket
    from .letters import Ready

Scalar = float | Tensor
Normals = tuple[Tensor, ...]


class Phase(NamedTuple):
    """Position and momentum of one tensor or one stacked batch, and of its slack variable; the radius of its space.

    Everything but q is None where the space or the word has none.
    """

    q: Tensor
    p: Any = None
    slack: Any = None
    slack_p: Any = None
    radius: Any = None

    def map(self, function: Callable[[Tensor], Tensor]) -> Phase:
        p, slack, slack_p = (None if x is None else function(x) for x in self[1:4])
        return Phase(function(self.q), p, slack, slack_p, self.radius)

    def momenta(self) -> list[Tensor]:
        return [m for m in (self.p, self.slack_p) if m is not None]


def over(a: Scalar, x: Tensor) -> Scalar:
    """A coefficient of shape (R,) so that it broadcasts against x of shape (R, …)."""
    return a.reshape(a.shape + (1,) * (x.ndim - a.ndim)) if isinstance(a, Tensor) and a.ndim else a


def add_scaled_(y: Tensor, x: Tensor, a: Scalar) -> Tensor:
    """y += a·x, in one pass over memory."""
    if isinstance(a, Tensor):
        return y.addcmul_(x, over(a, x))  # type: ignore[arg-type]
    return y.add_(x, alpha=a)


def integrate(
    ops: Sequence[Ready],
    space: Constraint,
    phase: Phase,
    force: Any,
    noise: Callable[[int], Normals],
    polish: bool | None = None,
    precision: torch.dtype | None = None,
) -> None:
    """Run the letters of a stage on a phase, in place.

    Args:
        ops: letters with their coefficients and the number of their draw.
        force: ∇L + λq, or None for a stage without B, L and M.
        noise: the number of a draw → normals for q or p and, if there is one, for its slack variable.
        polish: None within a step. The stage that ends a step says whether the space also removes accumulated rounding.
        precision: None but in a step's first stage, which takes up positions that were written from outside: the
            dtype of the parameter.
    """
    hint = None
    if precision is not None:
        space.adopt_(phase, precision)
    for letter, numbers, draw in ops:
        normals = noise(draw) if draw is not None else None
        if letter == "A":
            hint = space.drift_(phase, numbers[0])
        elif letter == "B":
            space.kick_(phase, force, numbers[0])
        elif letter == "L":
            hint = space.descend_(phase, force, numbers[0], normals, numbers[1])
        elif letter == "M":  # (2.56): the noise is the mean of this step's normals and the last step's, which p holds
            add_scaled_(phase.q, force, -numbers[0])
            if normals is not None:
                add_scaled_(phase.q, phase.p.add_(normals[0]), numbers[1] / 2)
                phase.p.copy_(normals[0])
        else:  # O, C, D, F: p ← c·p + s·Π R
            damping, size = numbers
            for m in phase.momenta():
                m.mul_(over(damping, m))
            if normals is not None:
                space.project_(phase, *normals)
                for m, z in zip(phase.momenta(), normals, strict=True):
                    add_scaled_(m, z, size)
    if polish is not None:
        space.finish_(phase, hint, polish)


class Eager:
    """The reference backend: :func:`integrate` on every tensor of every bucket of a group."""

    def begin(
        self,
        buckets: Sequence[Bucket],
        gradients: Sequence[Sequence[Tensor]] | None,
        sign: float,
        decay: Scalar,
        skip: Tensor | None,
        adopt: bool = True,
    ) -> None:
        """Load the phases and the forces of a step; without ``gradients`` there are no forces.

        ``adopt``: the first stage takes up positions that were written from outside since the last step. Letters
        work on copies where the step may be skipped or fail: parameters and state are written by :meth:`end`.
        """
        self.buckets, self.adopts = buckets, adopt
        self.views = [b.views() for b in buckets]
        copies = [skip is not None or b.space.traits.can_fail for b in buckets]
        self.phases = [b.load(v, copy) for b, v, copy in zip(buckets, self.views, copies, strict=True)]
        forces = [b.forces(g, sign, decay) for b, g in zip(buckets, gradients, strict=True)] if gradients else None
        self.forces: Sequence[Sequence[Tensor | None]] = forces or [[None] * len(phases) for phases in self.phases]

    def run(
        self, ops: Sequence[Ready], normals: Callable[[Bucket, int], Sequence[Normals]], polish: bool | None
    ) -> None:
        """One stage. ``normals(bucket, draw)`` has one entry a phase."""
        for bucket, phases, forces in zip(self.buckets, self.phases, self.forces, strict=True):
            cast = [op.to(phases[0].q) for op in ops]
            drawn = {op.draw: normals(bucket, op.draw) for op in ops if op.draw is not None}
            # Half precision rounds so much that it is polished at every step.
            self.stage(bucket, cast, phases, forces, drawn, polish if polish is None else polish or bucket.narrow)
        self.adopts = False

    def stage(
        self,
        bucket: Bucket,
        ops: Sequence[Ready],
        phases: Sequence[Phase],
        forces: Sequence[Tensor | None],
        drawn: Mapping[int, Sequence[Normals]],
        polish: bool | None,
    ) -> None:
        """One stage of one bucket."""
        precision = bucket.precision if self.adopts and not bucket.agrees(phases) else None
        try:
            for i, (phase, force) in enumerate(zip(phases, forces, strict=True)):
                integrate(ops, bucket.space, phase, force, lambda draw, i=i: drawn[draw][i], polish, precision)  # type: ignore[misc]
        except (ConstraintError, ProjectionError) as error:
            raise type(error)(f"{', '.join(bucket.names)}: {error}") from None

    def kinetic_energy(self, replica_dims: int) -> Tensor:
        """Σ p² of tangent momenta, per replica, summed in a fixed order: ranks must agree to the last bit."""
        momenta = [
            m for bucket, xs in zip(self.buckets, self.phases, strict=True) for x in xs for m in bucket.space.tangent(x)
        ]
        parts = [m.square().reshape(*m.shape[:replica_dims], -1).sum(-1) for m in momenta]
        return torch.stack([x.to(parts[0].device) for x in parts]).sum(0)

    def positions(self) -> list[Tensor]:
        return [x.q for phases in self.phases for x in phases]

    def lost(self, skip: Tensor) -> Tensor:
        """Whether a projection had no root, on the device."""
        # NaN is not less than infinity, either, so one pass over memory finds both.
        largest = [torch.linalg.vector_norm(q, math.inf).to(skip.device) for q in self.positions()]
        return ~(torch.stack(largest) < math.inf).all()

    def total(self, parts: Sequence[tuple[Bucket, Tensor]]) -> Tensor:
        """The sum of one number, or several, a bucket; over all ranks where they hold parts of it."""
        return torch.stack([value for _, value in parts]).sum(0)

    def end(self, skip: Tensor | None) -> None:
        """Write parameters and state; where ``skip`` is true on the device they stay as they were."""
        for bucket, views, phases in zip(self.buckets, self.views, self.phases, strict=True):
            bucket.store(views, phases, skip)
