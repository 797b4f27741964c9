"""The interface of a space of weights: how to reach it, to move along it, and to stay tangent to it.

A constraint knows nothing of schemes, groups or rates. Most methods take one :class:`Phase` and change it in place. A
phase is one tensor, or a stacked batch whose trailing dimensions are the block.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .._sharding.shards import is_sharded
from .._step.integrate import Normals, Phase, Scalar, add_scaled_
from ..errors import ConstraintError

if TYPE_CHECKING:
    from .views import View

MOMENTA = ("momentum", "spin", "chord")


class Landing(NamedTuple):
    """What landing a tensor on its manifold did: how many blocks moved, how far at most, and how many are frozen."""

    moved: int
    blocks: int
    distance: float
    frozen: int = 0


class Traits(NamedTuple):
    """What backends need to know of a space.

    elementwise: every entry is constrained by itself, with one radius. So tensors may be joined to one vector.
    rowwise: the arithmetic is element- or row-wise. So compiling it into one pass over memory pays.
    stacked: tensors of one shape are one batch.
    padded: rows of zeros below a block stay zero and change nothing. So blocks of different heights may be stacked.
    geodesic: ``drift_`` is exact. So two drifts are one.
    can_fail: a step may have no projection. So steps work on copies.
    joint: all tensors of a group are constrained together, and move as one vector.
    """

    elementwise: bool = False
    rowwise: bool = True
    stacked: bool = False
    padded: bool = False
    geodesic: bool = True
    can_fail: bool = False
    joint: bool = False


class Constraint:
    """The interface of a space of weights.

    Attributes:
        slots: names of the state of a slack variable and of its momentum.
        lost: a larger residual means that the weights have left the manifold.
        has_initialiser: :mod:`holonom.init` can draw weights on it.
        has_virial: it has a :meth:`virial`.
        has_dynamics: it has the methods that letters need.
        is_bound: it is an inequality.
        takes_sizes: its radii are those of the initial weights times ``factor`` (:meth:`sizes`).
        only_rescales: landing on these radii only multiplies blocks, which is not warned about.
    """

    slots: tuple[str, ...] = ()
    traits: Traits = Traits()
    lost = 1e-2
    has_initialiser = True
    has_virial = False
    has_dynamics = True
    is_bound = False
    takes_sizes = False
    only_rescales = False
    factor = 1.0

    # ── tensors and blocks ───────────────────────────────────────────────────────────────────────

    def view(self, q: Tensor) -> Tensor:
        """The tensor as (…, *block): a view of its memory where :meth:`is_view` says so, else a copy."""
        return q

    def is_view(self, q: Tensor) -> bool:
        """Whether :meth:`view` gives a view. If not, :meth:`write_` puts back what was written to the copy."""
        return True

    def write_(self, q: Tensor, block: Tensor) -> None:
        """The inverse of :meth:`view`."""
        q.copy_(block)

    def readable(self, x: Tensor) -> Tensor:
        """The same tensor, copied to another order in memory if :meth:`view` would not give a view of it."""
        return x

    def with_view(self, view: View | str | None, ndim: int | None = None) -> Constraint:
        """If the space's own view is "auto", the same space with this ``view``; otherwise the space itself.

        If ``ndim``, the number of the parameter's dimensions, is given, a ``View`` that has a name is replaced by it.
        """
        return self

    def radius_of(self, q: Tensor, sizes: Tensor | None = None) -> Scalar | None:
        """The radius of every block of a tensor, in a shape that broadcasts against the blocks; None if there is none.

        ``sizes`` are those of this tensor, where the space ``takes_sizes``.
        """
        return None

    def sizes(self, q: Tensor, name: str) -> Tensor | None:
        """If the space ``takes_sizes``, one number for each block of the initial weights, its norm; otherwise None.

        They are kept in the parameter's state, in the state's dtype.
        """
        return None

    def held_at(self, sizes: Tensor | None) -> Constraint:
        """The space of one parameter with these :meth:`sizes`; the space itself if they are None."""
        return self

    # ── tensors that are spread over ranks ───────────────────────────────────────────────────────

    def reach(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """The length of a block along each dimension of a tensor of this shape.

        Blocks divide each dimension evenly, so a rank can compute which blocks its shard cuts. None means that the
        constraint needs the whole tensor.
        """
        return None

    def sizes_from(self, norms: Tensor, q: Tensor, name: str) -> Tensor:
        """:meth:`sizes` of a tensor from the norms of its blocks, in their order. Only q's shape and dtype are read."""
        raise NotImplementedError(f"{type(self).__name__} takes no sizes")

    def on_shard(self, shape: Sequence[int], first: Sequence[int], local: Sequence[int]) -> Constraint:
        """The space of a shard that cuts no block: ``first`` is its place in the tensor, ``local`` its shape."""
        return self

    def in_half_precision(self) -> Constraint:
        """The same space for positions that are rounded to half precision after every step."""
        return self

    def over_replicas(self, dims: int) -> Constraint:
        """The same space for tensors whose first ``dims`` dimensions are replicas."""
        return self

    def joined(self, params: Sequence[Tensor], names: Sequence[str]) -> Constraint:
        """The space of one vector that these tensors are joined to, where ``traits.joint``."""
        return self

    def momentum_name(self, q: Tensor) -> str:
        """The name of a parameter's momentum in its state, one of :data:`MOMENTA`."""
        return "momentum"

    def check(self, q: Tensor, name: str) -> None:
        """Raise :class:`ConstraintError` if the constraint cannot hold on this tensor."""

    def land_(self, q: Tensor, name: str) -> Landing:
        """Move ``q`` to the nearest point of the manifold."""
        return Landing(0, 1, 0.0)

    def lift(self, q: Tensor) -> tuple[Tensor, ...]:
        """Values of the slots that put ``q`` (already landed) on the manifold."""
        return ()

    def degrees_of_freedom(self, q: Tensor) -> int:
        """Dimension of the manifold: parameters and slack variables minus constraints."""
        return q.numel()

    def kernel_key(self) -> Hashable:
        """A key that is equal for spaces with the same arithmetic. They share compiled kernels."""
        return repr(self)

    # ── positions that were written from outside ─────────────────────────────────────────────────

    def adopt_(self, x: Phase, precision: torch.dtype) -> None:
        """Before a step's first letter: take up positions that were edited since the last step.

        Where position and state differ by more than a few roundings, the position is moved to the manifold if it is
        off it, state is set from it, and momenta become tangent. All else stays as it is, bit for bit. Nothing is read
        back from the device. ``precision`` is the parameter's dtype; that of x.q may be wider.
        """

    # ── what letters do ──────────────────────────────────────────────────────────────────────────

    def project_(self, x: Phase, p: Tensor, slack_p: Tensor | None = None) -> None:
        """p ← Π(q)·p, after a letter added noise. A normal part may stay if ``drift_`` removes it."""

    def kick_(self, x: Phase, force: Tensor, h: Scalar) -> None:
        """B: p −= h·Π(q)·∇L."""
        add_scaled_(x.p, force, -h)

    def drift_(self, x: Phase, h: Scalar) -> object:
        """A: follow the geodesic with velocity p for a time h. The result is a hint for :meth:`finish_`."""
        raise NotImplementedError(f"{type(self).__name__} has no drift_: words with A need one")

    def descend_(self, x: Phase, force: Tensor, h: Scalar, normals: Normals | None, size: Scalar) -> object:
        """L: q ← the retraction of q − h·force + size·normals. Returns a hint as :meth:`drift_` does."""
        step = add_scaled_(torch.zeros_like(force), force, -h)
        slack_step = None if x.slack is None else torch.zeros_like(x.slack)
        if normals is not None:
            add_scaled_(step, normals[0], size)
            if slack_step is not None:
                add_scaled_(slack_step, normals[1], size)
        return self.retract_(x, step, slack_step)

    def retract_(self, x: Phase, step: Tensor, slack_step: Tensor | None) -> object:
        """q ← the retraction of q + step. Returns a hint as :meth:`drift_` does."""
        raise NotImplementedError(f"{type(self).__name__} has no retract_: the word L needs one")

    def finish_(self, x: Phase, hint: object, polish: bool) -> None:
        """After the last letter of a step: write the positions; with ``polish`` also remove accumulated rounding."""

    # ── what other optimizers' steps need; nothing is read back from the device ──────────────────

    def nearest_(self, x: Phase) -> None:
        """q ← the nearest point that satisfies the constraint. Bounds have no margin here."""
        raise ConstraintError(f"{self!r} works in Langevin only: it has no nearest point without a search")

    def project_step_(self, x: Phase, step: Tensor) -> None:
        """step ← its tangential part. For a bound: step without its outward part, where q is at the bound."""
        raise ConstraintError(f"{self!r} has no tangent spaces; move to the nearest point instead")

    def move_(self, x: Phase, step: Tensor) -> None:
        """q ← the retraction of q + step, for a step from :meth:`project_step_`, which is overwritten."""
        x.q.add_(step)
        self.nearest_(x)

    def norms(self, x: Phase) -> Tensor:
        """The Euclidean norm of every block."""
        raise NotImplementedError(f"{type(self).__name__} has no norms by block")

    # ── diagnostics ──────────────────────────────────────────────────────────────────────────────

    def tangent(self, x: Phase) -> list[Tensor]:
        """The momenta, without the normal part that letters may leave."""
        return x.momenta()

    def virial(self, x: Phase, force: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of f·∇U and of div f for a vector field f on the manifold. In equilibrium ⟨f·∇U⟩ = τ⟨div f⟩.

        ``force`` is ∇U at x. f vanishes at ``reference``, which may be any constant.
        """
        raise NotImplementedError(f"{type(self).__name__} has no virial")

    def residual(self, x: Phase) -> Tensor:
        """The largest violation of the constraint; for a bound without a slack variable, how far q is outside."""
        return torch.zeros((), device=x.q.device)

    def residuals(self, x: Phase) -> Tensor:
        """The violation of every block, (blocks, …), for spaces whose drift is a projection."""
        raise NotImplementedError(f"{type(self).__name__} has no residuals by block")

    def holds(self, x: Phase, precision: torch.dtype) -> bool:
        """Whether position and slack variable agree, to the rounding of this precision."""
        return bool(self.residual(x) <= 32 * torch.finfo(x.q.dtype).eps + rounding(x, precision, 4))

    def cotangency(self, x: Phase) -> Tensor:
        """The largest violation of ∇g·p = 0."""
        return torch.zeros((), device=x.q.device)


def check_radius(radius: Scalar, space: str) -> None:
    """Raise :class:`ConstraintError` unless a radius is a positive number, or a tensor of positive numbers."""
    if is_sharded(radius):
        raise ConstraintError(
            f"{space}: the radius is a DTensor; give the whole of it as a plain tensor (radius.full_tensor()); "
            f"every rank takes the part that belongs to its shard of the parameter"
        )
    if not isinstance(radius, (Real, Tensor)) or isinstance(radius, bool):
        more = "; a sphere also takes 'initial'" if space == "Sphere" else ""
        raise ConstraintError(f"{space}: a radius is a number or a tensor (torch.tensor(…)), got {radius!r}{more}")
    values = torch.as_tensor(radius, dtype=torch.float64)
    if not bool(((values > 0) & values.isfinite()).all()):
        raise ConstraintError(f"{space}: every radius must be positive and finite, got {radius}")


INITIAL = "initial"
"""The radius or scale that is taken from the initial weights."""


def measured(norms: Tensor, like: Tensor, factor: float, name: str, what: str) -> Tensor:
    """``factor`` times the norms of blocks, in the dtype of a parameter's state. Errors call the argument ``what``."""
    if bool((norms == 0).any()):
        raise ConstraintError(
            f"{what} on {name}: {int((norms == 0).sum())} of {norms.numel()} blocks are zero and have no norm to keep; "
            f"initialise them first, or give a number"
        )
    return (norms * factor).to(widened(like).dtype)


def norms_of(blocks: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Euclidean norms, in double precision where the device has it."""
    precision = blocks.dtype if blocks.device.type == "mps" else torch.float64
    norms: Tensor = torch.linalg.vector_norm(blocks, dim=dims, dtype=precision)
    return norms


def rounding(x: Phase, precision: torch.dtype, times: float) -> float:
    """``times`` the rounding of a precision, if it is lower than that of the phase; otherwise 0."""
    return times * torch.finfo(precision).eps if precision != x.q.dtype else 0.0


def inset(margin: float, dtype: torch.dtype) -> float:
    """A margin of at least two roundings of this dtype."""
    return max(margin, 2 * torch.finfo(dtype).eps)


def widened(q: Tensor) -> Tensor:
    """The tensor in the precision of state, which is float32 for half precision."""
    return q.float() if q.dtype.itemsize < 4 else q


def describe(value: object) -> str:
    """A hyperparameter as text. Texts are equal exactly when values are, as comparing checkpoints needs."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return repr(float(value))  # type: ignore[arg-type]
    digest = zlib.crc32(value.detach().double().cpu().contiguous().numpy().tobytes())
    return f"tensor{tuple(value.shape)}#{digest:08x}"
