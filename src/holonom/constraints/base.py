"""What a space of weights must know: how to land on it, move along it and stay tangent to it.

A constraint never sees a scheme, a group or a rate. It gets a :class:`Phase`, lists of tensors
whose trailing dimensions are the block and whose leading dimensions are batch, and changes it in
place. The base class is flat space: no constraint at all.
"""

from __future__ import annotations

import zlib
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import ConstraintError
from ..lists import Scalar, Tensors, add_scaled_, scaled

MOMENTA = ("momentum", "spin", "chord")
VIEWS = (None, "conv", "batch", "batch conv")


class Phase(NamedTuple):
    """A point of phase space: positions, momenta, and the same for the slack variables if there are any."""

    q: Tensors
    p: Tensors
    slack: Tensors
    slack_p: Tensors

    @property
    def momenta(self) -> Tensors:
        return self.p + self.slack_p

    @property
    def ambient(self) -> Tensors:
        """Everything an overdamped step adds noise to."""
        return self.q + self.slack


class Landing(NamedTuple):
    """What moving a tensor onto the manifold did: how many blocks moved, the largest distance, how many are frozen."""

    moved: int
    blocks: int
    distance: float
    frozen: int = 0


class Constraint:
    """Flat space, and the interface of every other one.

    ``slots`` names the state a slack variable and its momentum live in; ``stacks`` asks for tensors
    of one shape to be handed over as one batch; ``fusible`` says that the arithmetic is element- or
    row-wise, so that compiling it into one pass pays, and ``elementwise`` that shapes do not matter;
    ``geodesic``, that ``drift_`` is exact, so that drifts add up. A residual above ``lost`` means that the
    weights have left the manifold; ``has_initialiser``, that :mod:`holonom.init` can start on it.
    """

    slots: tuple[str, ...] = ()
    stacks = False
    fusible = True
    geodesic = True
    lost = 1e-2
    has_initialiser = True

    @property
    def elementwise(self) -> bool:
        return True

    @property
    def constants(self) -> tuple[float, ...]:
        """Numbers that become part of a compiled pass."""
        return ()

    @property
    def loose(self) -> Constraint:
        """The same space for the letters of a step.

        Where ``drift_`` goes to the same point whatever the momentum's normal part is, they need not keep it tangent:
        it may lean until somebody looks at it (:meth:`tangent`).
        """
        return self

    @property
    def rounded(self) -> Constraint:
        """The same space for positions that are rounded to half precision behind every step."""
        return self

    @property
    def leans(self) -> bool:
        """Whether steps leave momenta that are not tangent."""
        return self.loose is not self

    def tangent(self, phase: Phase) -> Tensors:
        """The momenta; of those that may lean, copies that do not."""
        if not self.leans:
            return phase.momenta
        momenta = [m.clone() for m in phase.momenta]
        self.project_(phase, momenta)
        return momenta

    def view(self, q: Tensor) -> Tensor:
        """The tensor as (…, *block); always a view, never a copy."""
        return q

    def momentum_name(self, q: Tensor) -> str:
        """The state a parameter's momentum lives in, by the coordinates it is kept in; one of :data:`MOMENTA`."""
        return "momentum"

    def check(self, q: Tensor, name: str) -> None:
        """Raise :class:`ConstraintError` if the constraint cannot hold on this tensor."""

    def land_(self, q: Tensor, name: str) -> Landing:
        """Move ``q`` to the nearest point of the manifold."""
        return Landing(0, 1, 0.0)

    def slack(self, q: Tensor) -> tuple[Tensor, ...]:
        """Values of the slots that put ``q`` (already landed) on the manifold."""
        return ()

    def kick_(self, phase: Phase, force: Tensors, h: Scalar) -> None:
        """B: p −= h·Π(q)·∇L."""
        add_scaled_(phase.p, force, -h)

    def project_(self, phase: Phase, momenta: Tensors) -> None:
        """Π(q): any momentum → the cotangent space at q."""

    def drift_(self, phase: Phase, h: Scalar) -> None:
        """A: follow the geodesic with velocity p for a time h."""
        add_scaled_(phase.q, phase.p, h)

    def settle_(self, phase: Phase, step: int) -> None:
        """After the last letter of a step: write what the user sees, remove rounding.

        ``step`` counts the group's steps, for work that is needed only now and then.
        """

    def descend_(self, phase: Phase, force: Tensors, h: Scalar, noise: Tensors, amplitude: Scalar) -> None:
        """L: q ← the manifold's point for q − h·force + amplitude·noise."""
        step = scaled(force, -h) + [torch.zeros_like(x) for x in phase.slack]
        if noise:
            add_scaled_(step, noise, amplitude)
        self.euler_(phase, step)

    def euler_(self, phase: Phase, step: Tensors) -> None:
        """q ← the manifold's point for q + step, where ``step`` matches ``phase.ambient``."""
        add_scaled_(phase.q, step, 1.0)

    def residual(self, phase: Phase) -> Tensor:
        """The largest violation of the constraint."""
        return torch.zeros((), device=phase.q[0].device)

    def holds(self, phase: Phase, precision: torch.dtype) -> bool:
        """Whether positions and slack belong together, as far as positions of this precision can tell."""
        return bool(self.residual(phase) <= 32 * torch.finfo(phase.q[0].dtype).eps + rounded(phase, precision, 4))

    def cotangency(self, phase: Phase) -> Tensor:
        """The largest violation of ∇g·p = 0."""
        return torch.zeros((), device=phase.q[0].device)

    def degrees_of_freedom(self, q: Tensor) -> int:
        """Dimension of the manifold: parameters and slack variables minus constraints."""
        return q.numel()

    def __repr__(self) -> str:
        return "Free()"


def as_matrix(q: Tensor, view: str | None) -> Tensor:
    """The (…, rows, columns) view of a tensor of more than two dimensions that ``view`` names."""
    if view == "conv":
        return q.flatten(1)
    if view == "batch conv":
        return q.flatten(2)
    return q


def check_view(q: Tensor, name: str, view: str | None, space: str) -> None:
    """A tensor of more than two dimensions is never guessed at."""
    if q.ndim > 2 and view is None:
        raise ConstraintError(
            f"{space} on {name} of shape {tuple(q.shape)}: say how to read more than two dimensions: "
            f"view='conv' for (out, in·kh·kw), view='batch' for a stack of matrices, "
            f"view='batch conv' for a stack of convolutions"
        )
    least = {"conv": 3, "batch": 3, "batch conv": 4}.get(view or "", 0)
    if q.ndim < least:
        raise ConstraintError(
            f"{space} on {name}: view={view!r} needs at least {least} dimensions, the shape is {tuple(q.shape)}"
        )
    if view in ("conv", "batch conv") and not q.is_contiguous():
        raise ConstraintError(
            f"{space} on {name}: view={view!r} needs contiguous memory (not channels_last); "
            f"call .contiguous() on the parameter before building the optimizer"
        )


def check_radius(radius: Scalar, space: str) -> None:
    if not isinstance(radius, (Real, Tensor)) or isinstance(radius, bool):
        raise ConstraintError(f"{space}: a radius is a number or a tensor (torch.tensor(…)), got {radius!r}")
    values = torch.as_tensor(radius, dtype=torch.float64)
    if not bool(((values > 0) & values.isfinite()).all()):
        raise ConstraintError(f"{space}: every radius must be positive and finite, got {radius}")


def rounded(phase: Phase, precision: torch.dtype, times: float) -> float:
    """So many roundings to a precision that is less than what the phase is computed in, else 0."""
    return times * torch.finfo(precision).eps if precision != phase.q[0].dtype else 0.0


def inset(margin: float, dtype: torch.dtype) -> float:
    """A margin that rounding to this precision cannot use up."""
    return max(margin, 2 * torch.finfo(dtype).eps)


def exact(q: Tensor) -> Tensor:
    """In the precision that slack variables are kept in."""
    return q.float() if q.dtype.itemsize < 4 else q


Copies = dict[tuple[torch.device, torch.dtype], Tensor]


def on(value: Tensor, like: Tensor, copies: Copies) -> Tensor:
    """A tensor where and as ``like`` is, copied there once: a copy from the host would stall a device at every step."""
    key = (like.device, like.dtype)
    if key not in copies:
        copies[key] = value.to(*key)
    return copies[key]


def describe(value: object) -> str:
    """A hyperparameter as text that is equal exactly when the value is (used to compare checkpoints)."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return repr(float(value))  # type: ignore[arg-type]
    digest = zlib.crc32(value.detach().double().cpu().contiguous().numpy().tobytes())
    return f"tensor{tuple(value.shape)}#{digest:08x}"
