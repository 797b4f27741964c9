"""LevelSet: any differentiable g(q) = 0 and h(q) ≤ 0, the latter with slack variables (thesis 4.7.2.1–2)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor
from torch.func import vmap
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from ..._step.integrate import Phase, Scalar, add_scaled_
from ...errors import ConstraintError, ProjectionError
from ..base import Constraint, Landing, Traits, rounding, widened
from .jacobian import are_dependent, distance, linearised, tangent
from .landing import inside, land, refuse_undefined, violated
from .projection import Value, along, nearest

Function = Callable[..., Tensor]


class LevelSet(Constraint):
    r"""Keep g(q) = 0 and h(q) ≤ 0 for functions of your own.

    A function takes one block: the parameter, or one entry of its leading ``batch_dims`` dimensions. It returns a
    number or a tensor of constraints. It is differentiated by autograd and batched by ``vmap``. A function sees one
    replica of an ensemble; ``batch_dims`` does not count the dimension of replicas.

        >>> LevelSet(lambda q: q.square().sum() - 1)
        >>> LevelSet(lambda w: w.sum() - 1, inequalities=lambda w: -w)  # a simplex
        >>> LevelSet(lambda a, b: a.square().sum() + b.square().sum() - 1, joint=True)  # of a group's two tensors

    An inequality has a slack variable, h(q) + ξ² = 0. So all constraints are equalities c(x) = 0 of x = (q, ξ).
    With the momentum π of x and the Jacobian G of c:

    - Π:  π ← π − Gᵀ(GGᵀ)⁻¹Gπ                                                    (4.43)
    - A:  RATTLE: x' = x + hπ − G(x)ᵀλ with c(x') = 0;  π ← Π_{x'}(π − G(x)ᵀλ/h)
    - L:  x' = x̄ − G(x)ᵀλ  (``direction="old"``, 4.41)  or the nearest point,
          x' = x̄ − G(x')ᵀλ (``direction="new"``, 4.42), which exists for larger steps

    The invariant law is exp(−L/τ) with respect to the surface measure of c(x) = 0. For q alone, inequalities multiply
    the surface measure of g(q) = 0 by √det(I + ¼ Σᵢ ∇hᵢ∇hᵢᵀ/|hᵢ|), with the determinant in the tangent space of
    g(q) = 0. Near a bound that is |h|^(−½), as on a circle: slack variables change the prior. At a bound a block feels
    no force across it. So blocks that start there are moved to h = −0.001.

    With ``joint=True`` the functions take all tensors of the parameter group, in order. The tensors move as one vector,
    and all need gradients. Checkpoints do not contain functions: give the same constraint again when you load one.

    Args:
        g: the function of equalities; None if there are none.
        slack: True turns g(q) = 0 into g(q) ≤ 0, as ``LevelSet(inequalities=g)`` does.
        direction: projection of the overdamped step, "new" or "old".
        batch_dims: how many leading dimensions are a batch of independent blocks.
        name: what to call the function in checkpoints and messages.
        inequalities: the function h of inequalities h(q) ≤ 0.
        joint: functions take the tensors of the group together.
    """

    has_initialiser = False
    replica_dims = 0
    raises = True  # where a drift finds no root; a sampler that tests every drift needs no error
    _shapes: tuple[torch.Size, ...] | None = None  # of the tensors that a joint block consists of

    def __init__(
        self,
        g: Function | None = None,
        slack: bool = False,
        direction: str = "new",
        batch_dims: int = 0,
        name: str | None = None,
        *,
        inequalities: Function | None = None,
        joint: bool = False,
    ) -> None:
        if direction not in ("new", "old"):
            raise ConstraintError(f"LevelSet: direction must be 'new' (4.42) or 'old' (4.41), got {direction!r}")
        if callable(slack):
            raise ConstraintError("LevelSet: the second argument is slack; write LevelSet(g, inequalities=h)")
        if not isinstance(slack, bool):
            raise ConstraintError(f"LevelSet: slack must be True or False, got {slack!r}")
        if not isinstance(batch_dims, int) or isinstance(batch_dims, bool) or batch_dims < 0:
            raise ConstraintError(f"LevelSet: batch_dims must be a whole number, at least 0, got {batch_dims!r}")
        if not all(f is None or callable(f) for f in (g, inequalities)) or g is inequalities is None:
            raise ConstraintError("LevelSet: give a function g of equalities g(q) = 0, or inequalities=h for h(q) ≤ 0")
        if slack and (g is None or inequalities is not None):
            raise ConstraintError(
                "LevelSet: slack=True makes g an inequality; give it as inequalities=…, without slack"
            )
        self.g = g
        self.slack = slack
        self.direction = direction
        self.batch_dims = batch_dims
        self.equalities, self.inequalities = (None, g) if slack else (g, inequalities)
        self.name = name or _name(g or inequalities)
        self.has_slack = self.inequalities is not None
        self.slots = ("slack", "slack_momentum") if self.has_slack else ()
        self.traits = Traits(rowwise=False, geodesic=False, can_fail=True, joint=joint)

    def __repr__(self) -> str:
        options = f"slack={self.slack}, direction={self.direction!r}, batch_dims={self.batch_dims}"
        options += f", inequalities={_name(self.inequalities)}" if self.has_slack and not self.slack else ""
        options += ", joint=True" if self.traits.joint else ""
        return f"LevelSet({self.name}, {options})"

    # ── blocks ────────────────────────────────────────────────────────────────────────────────

    def over_replicas(self, dims: int) -> LevelSet:
        if dims == self.replica_dims:
            return self
        new = copy.copy(self)
        new.replica_dims = dims
        return new

    @property
    def leading(self) -> int:
        """How many leading dimensions of a tensor are not its block's."""
        return self.replica_dims + self.batch_dims

    def joined(self, params: Sequence[Tensor], names: Sequence[str]) -> LevelSet:
        lead = {p.shape[: self.leading] for p in params}
        kinds_differ = len({(p.dtype, p.device) for p in params}) > 1
        if kinds_differ or len(lead) > 1 or min(p.ndim for p in params) < self.leading:
            kinds = ", ".join(f"{n}: {tuple(p.shape)} {p.dtype} {p.device}" for n, p in zip(names, params, strict=True))
            raise ConstraintError(
                f"{self!r}: tensors that are constrained together need one dtype, one device and the same "
                f"{self.leading} leading dimension(s); got {kinds}"
            )
        new = copy.copy(self)
        new._shapes = tuple(p.shape[self.leading :] for p in params)
        return new

    def check(self, q: Tensor, name: str) -> None:
        if q.ndim < self.leading:
            of_replicas = " after the replicas' dimension" if self.replica_dims else ""
            raise ConstraintError(
                f"LevelSet on {name}: {self.batch_dims} batch_dims{of_replicas}, the shape is {tuple(q.shape)}"
            )
        block = self._block(q)
        for function, called in ((self.equalities, "g"), (self.inequalities, "g" if self.slack else "inequalities")):
            if function is not None:
                self._try(function, called, block, name)
        if self.equalities is not None and (m := self._call(self.equalities, block).numel()) > block.numel():
            raise ConstraintError(f"LevelSet on {name}: {m} constraints on {block.numel()} parameters leave nothing")

    def _try(self, function: Function, called: str, block: Tensor, name: str) -> None:
        given = block.clone()
        try:
            value = self._call(function, given)
            m = value.numel()
            vmap(lambda x: self._call(function, x))(given[None])  # blocks are taken together
            if not m or not value.is_floating_point():
                raise ValueError(f"it returned {value.dtype}" if m else "it returned no constraint")
            if not torch.equal(given.nan_to_num(), block.nan_to_num()):
                raise ValueError("it writes into its argument; let it return a new tensor")
        except Exception as error:
            shape = tuple(block.shape) if self._shapes is None else ", ".join(str(tuple(s)) for s in self._shapes)
            several = isinstance(error, TypeError) and "positional argument" in str(error)
            wanted = "must return a tensor of real numbers, made by operations that torch.func.vmap maps"
            if several:
                wanted = "takes every tensor of its group, in order, with joint=True, and one tensor without"
            raise ConstraintError(
                f"LevelSet on {name}: {called} could not be evaluated on a block of shape {shape}: {error}. It {wanted}"
            ) from error

    def _call(self, function: Function, block: Tensor) -> Tensor:
        """The (m,) constraints of one block."""
        if self._shapes is None:
            return function(block).reshape(-1)
        parts = torch.split(block, [prod(shape) for shape in self._shapes])
        return function(*(x.reshape(shape) for x, shape in zip(parts, self._shapes, strict=True))).reshape(-1)

    def _block(self, q: Tensor) -> Tensor:
        """One block, in the precision that steps are computed in."""
        batch, shape = q.shape[: self.leading], q.shape[self.leading :]
        block = q.detach()[(0,) * self.leading] if batch.numel() else q.new_zeros(shape)
        return widened(block)

    def _functions(self) -> list[Function]:
        return [function for function in (self.equalities, self.inequalities) if function is not None]

    # ── vectors ───────────────────────────────────────────────────────────────────────────────
    # A batch of blocks is handled as x: (B, d) or, with m slack variables, (B, d + m).

    def _flat(self, q: Tensor, slack: Tensor | None) -> Tensor:
        rows = q.reshape(q.shape[: self.leading].numel(), -1)
        return rows if slack is None else torch.cat([rows, slack.reshape(rows.shape[0], -1)], 1)

    def _unflatten_(self, x: Tensor, q: Tensor, slack: Tensor | None) -> None:
        d = q.shape[self.leading :].numel()
        q.copy_(x[:, :d].reshape(q.shape))
        if slack is not None:
            slack.copy_(x[:, d:].reshape(slack.shape))

    def _unlifted(self, q: Tensor) -> Value:
        """g and h without slack: x: (B, d) → (B, m)."""
        block = q.shape[self.leading :]
        return vmap(lambda x: torch.cat([self._call(function, x.reshape(block)) for function in self._functions()]))

    def _value(self, q: Tensor) -> Value:
        """x: (B, d or d + m) → (B, all constraints)."""
        block = q.shape[self.leading :]
        d = block.numel()

        def c(x: Tensor) -> Tensor:
            here = x[:d].reshape(block)
            parts = [] if self.equalities is None else [self._call(self.equalities, here)]
            if self.inequalities is not None:
                parts.append(self._call(self.inequalities, here) + x[d:].square() + inside(x.dtype))
            return torch.cat(parts)

        return vmap(c)

    def _jacobian(self, q: Tensor) -> Value:
        return lambda x: linearised(self._value(q), x)[1]

    def _time(self, h: Scalar, x: Tensor) -> Scalar:
        """h for every block: that of its replica."""
        if not isinstance(h, Tensor) or not h.ndim:
            return h
        return h.repeat_interleave(len(x) // len(h))[:, None]

    # ── geometry ──────────────────────────────────────────────────────────────────────────────

    def land_(self, q: Tensor, name: str) -> Landing:
        precision, value = self._precision(q), self._unlifted(q)
        x = start = self._flat(q, None).to(precision, copy=True)
        block = self._block(q)
        counts = [self._call(function, block).numel() for function in self._functions()]
        bounds = torch.ones(sum(counts), dtype=torch.bool, device=q.device)
        bounds[: counts[0] if self.equalities is not None else 0] = False
        values, gradients = linearised(value, start)
        refuse_undefined(values, gradients, self.name, name)
        outside = violated(values, x, bounds, q.dtype).any(1)
        if bool(outside.any()):
            try:
                x = land(value, start, outside, bounds, q.dtype, self.name)
            except (ProjectionError, LinAlgError) as error:
                self._refuse_dependent(gradients, name)
                raise ConstraintError(
                    f"LevelSet on {name}: no nearest point that satisfies {self!r} was found from the initial "
                    f"weights; start closer, and see that there is one"
                ) from error
            self._unflatten_(x.to(q.dtype), q, None)
        full = self._flat(q, self.lift(q)[0] if self.has_slack else None).to(precision)
        value_there, jacobian = linearised(self._value(q), full)
        refuse_undefined(value_there, jacobian, self.name, name)
        self._refuse_dependent(jacobian, name)
        return Landing(int(outside.sum()), outside.numel(), ((x - start).norm(dim=1) * outside).max().item())

    def _precision(self, q: Tensor) -> torch.dtype:
        """Double precision, unless the user's function wants what it closes over to have the weights' own."""
        block = self._block(q)
        try:
            return torch.cat([self._call(function, block.double()) for function in self._functions()]).dtype
        except Exception:
            return block.dtype

    def _refuse_dependent(self, jacobian: Tensor, name: str) -> None:
        if are_dependent(jacobian):
            raise ConstraintError(
                f"LevelSet on {name}: the Jacobian of {self.name} is rank-deficient at the weights (two constraints "
                f"say the same, or a gradient vanishes there); drop a constraint or initialise elsewhere"
            )

    def lift(self, q: Tensor) -> tuple[Tensor, ...]:
        if (h := self.inequalities) is None:
            return ()
        value = vmap(lambda x: self._call(h, x.reshape(q.shape[self.leading :])))(self._flat(q, None))
        xi = (-value - inside(value.dtype)).clamp_min(0).sqrt().to(q.dtype)
        return xi, torch.zeros_like(xi)

    def adopt_(self, x: Phase, precision: torch.dtype) -> None:
        """Move blocks to the nearest point if one is farther off than projections leave them, and set the slack.

        On a device nothing is read back. There only the slack is set from g; the step's own projection does the rest.
        """
        allowed = 16 * torch.finfo(x.q.dtype).eps + rounding(x, precision, 4)
        off = ~(distance(self._value(x.q), self._flat(x.q, x.slack)) <= allowed)
        if x.q.device.type == "cpu" and not bool(off.any()):
            return
        if x.q.device.type == "cpu":
            self.land_(x.q, "edited weights")
        if x.slack is not None:
            slack = self.lift(x.q)[0]
            x.slack.copy_(torch.where(off, torch.where(x.slack < 0, -slack, slack), x.slack))
        if x.p is not None:
            start = self._flat(x.p, x.slack_p)
            projected = tangent(self._jacobian(x.q)(self._flat(x.q, x.slack)), start)
            self._unflatten_(torch.where(off, projected, start), x.p, x.slack_p)

    def project_(self, x: Phase, p: Tensor, slack_p: Tensor | None = None) -> None:
        j = self._jacobian(x.q)(self._flat(x.q, x.slack))
        self._unflatten_(tangent(j, self._flat(p, slack_p)), p, slack_p)

    def kick_(self, x: Phase, force: Tensor, h: Scalar) -> None:
        add_scaled_(x.p, force, -h)
        self.project_(x, x.p, x.slack_p)

    def drift_(self, x: Phase, h: Scalar) -> None:
        start, pi = self._flat(x.q, x.slack), self._flat(x.p, x.slack_p)
        time, j = self._time(h, start), self._jacobian(x.q)(start)
        moved, multiplier = along(self._value(x.q), start + time * pi, j, x.q.dtype, self.name, self.raises)
        normal = (j.mT @ multiplier)[:, :, 0]
        pi = pi - (torch.where(time == 0, 0.0, normal / time) if isinstance(time, Tensor) else normal / time)
        self._unflatten_(moved, x.q, x.slack)
        self._unflatten_(tangent(self._jacobian(x.q)(moved), pi), x.p, x.slack_p)

    def retract_(self, x: Phase, step: Tensor, slack_step: Tensor | None) -> None:
        start = self._flat(x.q, x.slack)
        target = start + self._flat(step, slack_step)
        if self.direction == "old":
            moved, _ = along(self._value(x.q), target, self._jacobian(x.q)(start), x.q.dtype, self.name)
        else:
            moved = nearest(self._value(x.q), target, x.q.dtype, self.name)
        self._unflatten_(moved, x.q, x.slack)

    # ── diagnostics ───────────────────────────────────────────────────────────────────────────

    def residual(self, x: Phase) -> Tensor:
        return self._value(x.q)(self._flat(x.q, x.slack)).abs().max()

    def residuals(self, x: Phase) -> Tensor:  # relative to the blocks' sizes, to first order
        return distance(self._value(x.q), self._flat(x.q, x.slack))

    def cotangency(self, x: Phase) -> Tensor:
        j = self._jacobian(x.q)(self._flat(x.q, x.slack))
        return (j @ self._flat(x.p, x.slack_p)[:, :, None]).abs().max()

    def degrees_of_freedom(self, q: Tensor) -> int:
        if self.equalities is None:
            return q.numel()
        return q.numel() - q.shape[: self.leading].numel() * self._call(self.equalities, self._block(q)).numel()


def _name(function: Function | None) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
