"""What a space of weights must know: how to reach it, move along it and stay tangent to it.

A constraint never sees a scheme, a group or a rate. Its verbs take one :class:`Phase` (one tensor, or a stacked batch
whose trailing dimensions are the block) and change it in place.
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
    """What moving a tensor onto the manifold did: how many blocks moved, the largest distance, how many are frozen."""

    moved: int
    blocks: int
    distance: float
    frozen: int = 0


class Traits(NamedTuple):
    """What backends need to know of a space.

    elementwise: every entry by itself, at one radius, so that tensors may be joined to one vector.
    rowwise: the arithmetic is element- or row-wise, so that compiling it into one pass over memory pays.
    stacked: tensors of one shape are worked on as one batch.
    padded: rows of zeros below a block stay zeros and change nothing: blocks of different heights may be stacked.
    geodesic: ``drift_`` is exact, so that drifts add up.
    can_fail: a step may have no projection; it works on copies.
    joint: all tensors of a group are constrained together and move as one vector.
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

    ``slots`` names the state that a slack variable and its momentum live in. A residual above ``lost`` means that the
    weights have left the manifold. ``has_initialiser``: :mod:`holonom.init` can start on it. ``has_virial``: it has a
    :meth:`virial`. ``has_dynamics``: it has the verbs that letters need. ``is_bound``: an inequality. ``takes_sizes``:
    its radii are those of the initial weights, times ``factor`` (:meth:`sizes`). ``only_rescales``: landing on those
    radii only multiplies blocks, so that nothing is warned about.
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
        """The space that reads parameters by ``view``, if its own view is "auto"; else itself: what was given wins.

        ``ndim``, the parameter's dimensions, turns a ``View`` that has a name into that name, by which it is printed.
        """
        return self

    def radius_of(self, q: Tensor, sizes: Tensor | None = None) -> Scalar | None:
        """The radius of every block of a tensor, so that it broadcasts against the blocks; None if there is none.

        ``sizes`` are those of this tensor, where the space ``takes_sizes``.
        """
        return None

    def sizes(self, q: Tensor, name: str) -> Tensor | None:
        """Where the space ``takes_sizes``: what it keeps of the initial weights, one number a block; else None.

        They belong to the state of the parameter, in the state's dtype.
        """
        return None

    def held_at(self, sizes: Tensor | None) -> Constraint:
        """The space of one parameter whose :meth:`sizes` are these; itself where there are none."""
        return self

    # ── tensors that are spread over ranks ───────────────────────────────────────────────────────

    def reach(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """How many neighbouring entries of a block there are along each dimension of a tensor of this shape.

        Blocks divide each dimension evenly, so that a rank knows which ones its shard cuts. None: the constraint needs
        the whole tensor.
        """
        return None

    def sizes_from(self, norms: Tensor, q: Tensor, name: str) -> Tensor:
        """:meth:`sizes` of a tensor whose blocks have these norms, in their order; q may be without contents."""
        raise NotImplementedError(f"{type(self).__name__} takes no sizes")

    def on_shard(self, shape: Sequence[int], first: Sequence[int], local: Sequence[int]) -> Constraint:
        """The space of a shard of shape ``local`` that starts at ``first`` of a tensor and cuts no block."""
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
        """The state a parameter's momentum lives in, by its coordinates; one of :data:`MOMENTA`."""
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
        """Equal for spaces whose verbs are the same function of a phase, so that they may share compiled kernels."""
        return repr(self)

    # ── positions that were written from outside ─────────────────────────────────────────────────

    def adopt_(self, x: Phase, precision: torch.dtype) -> None:
        """Take up positions that were written from outside since the last step, before a step's first letter.

        Where position and state differ by more than a few roundings, state is set from the position (which is moved
        to the manifold if it is off it) and momenta become tangent. All else stays as it is, bit for bit. It is
        arithmetic on the device, which is not asked. ``precision`` is the parameter's dtype; x.q may be wider.
        """

    # ── what letters do ──────────────────────────────────────────────────────────────────────────

    def project_(self, x: Phase, p: Tensor, slack_p: Tensor | None = None) -> None:
        """Π(q) of a letter's noise. A normal part that ``drift_`` removes anyway may stay."""

    def kick_(self, x: Phase, force: Tensor, h: Scalar) -> None:
        """B: p −= h·Π(q)·∇L."""
        add_scaled_(x.p, force, -h)

    def drift_(self, x: Phase, h: Scalar) -> object:
        """A: follow the geodesic with velocity p for a time h. What is returned is given to :meth:`finish_`."""
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
        """After the last letter of a step: write what the user sees; ``polish``: also remove accumulated rounding."""

    # ── what other optimizers' steps need: arithmetic on the device, which is not asked ──────────

    def nearest_(self, x: Phase) -> None:
        """q ← the nearest point of the set that the constraint allows; of a bound, without a margin."""
        raise ConstraintError(f"{self!r} works in Langevin only: it has no nearest point without a search")

    def project_step_(self, x: Phase, step: Tensor) -> None:
        """step ← its part along the manifold; of a bound, without what points outward where q is at the bound."""
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
        """The momenta, or copies without the normal part that letters may leave."""
        return x.momenta()

    def virial(self, x: Phase, force: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """f·∇U and div f, summed, of a vector field f on the manifold: ⟨f·∇U⟩ = τ⟨div f⟩ in equilibrium.

        ``force`` is ∇U at x; f vanishes at ``reference``, which may be any constant.
        """
        raise NotImplementedError(f"{type(self).__name__} has no virial")

    def residual(self, x: Phase) -> Tensor:
        """The largest violation of the constraint. A bound whose slack variable is not given: how far q is outside."""
        return torch.zeros((), device=x.q.device)

    def residuals(self, x: Phase) -> Tensor:
        """The violation of every block, the first dimension counting them; where a drift is a projection."""
        raise NotImplementedError(f"{type(self).__name__} has no residuals by block")

    def holds(self, x: Phase, precision: torch.dtype) -> bool:
        """Whether position and slack agree, as far as a position of this precision can tell."""
        return bool(self.residual(x) <= 32 * torch.finfo(x.q.dtype).eps + rounding(x, precision, 4))

    def cotangency(self, x: Phase) -> Tensor:
        """The largest violation of ∇g·p = 0."""
        return torch.zeros((), device=x.q.device)


def check_radius(radius: Scalar, space: str) -> None:
    """Raise :class:`ConstraintError` unless a radius is a positive number, or a tensor of them."""
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
    """Sizes of blocks from their norms, in the dtype of a parameter's state. ``what`` names the argument in errors."""
    if bool((norms == 0).any()):
        raise ConstraintError(
            f"{what} on {name}: {int((norms == 0).sum())} of {norms.numel()} blocks are zero and have no norm to keep; "
            f"initialise them first, or give a number"
        )
    return (norms * factor).to(widened(like).dtype)


def norms_of(blocks: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Euclidean norms in double precision, where there is one."""
    precision = blocks.dtype if blocks.device.type == "mps" else torch.float64
    norms: Tensor = torch.linalg.vector_norm(blocks, dim=dims, dtype=precision)
    return norms


def rounding(x: Phase, precision: torch.dtype, times: float) -> float:
    """So many roundings to a precision below that of the phase, else 0."""
    return times * torch.finfo(precision).eps if precision != x.q.dtype else 0.0


def inset(margin: float, dtype: torch.dtype) -> float:
    """A margin that rounding to this precision cannot use up."""
    return max(margin, 2 * torch.finfo(dtype).eps)


def widened(q: Tensor) -> Tensor:
    """In the precision of the state: float32 for half precision."""
    return q.float() if q.dtype.itemsize < 4 else q


def describe(value: object) -> str:
    """A hyperparameter as text that is equal exactly when the value is (used to compare checkpoints)."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return repr(float(value))  # type: ignore[arg-type]
    digest = zlib.crc32(value.detach().double().cpu().contiguous().numpy().tobytes())
    return f"tensor{tuple(value.shape)}#{digest:08x}"
