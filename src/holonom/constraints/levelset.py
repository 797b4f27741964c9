"""LevelSet: any differentiable g(q) = 0, or g(q) ≤ 0 with slack variables (thesis 4.7.2.1–2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from .._step.integrate import Phase, Scalar, add_scaled_, over
from ..errors import ConstraintError, ProjectionError
from .base import Constraint, Landing, Traits, inset, rounding, widened
from .jacobian import are_dependent, distance, linearised, solve, tangent

_MARGIN = 1e-3  # at ξ = 0 the tangent is pure slack and a block feels no force: what lands lands at g = −margin
MAX_ITERATIONS = 200
DEVICE_ITERATIONS = 12


class LevelSet(Constraint):
    r"""Keep g(q) = 0, or g(q) ≤ 0, for a function of your own.

    ``g`` takes one block (the parameter, or one entry of its leading ``batch_dims`` dimensions) and
    returns a tensor of m constraints; it is differentiated by autograd and batched by ``vmap``.
    With ``slack=True`` the constraint is g(q) + ξ² = 0, so that g(q) ≤ 0. Writing x for (q, ξ), π
    for its momentum and G for the Jacobian:

    - Π:  π ← π − Gᵀ(GGᵀ)⁻¹Gπ                                                    (4.43)
    - A:  RATTLE: x' = x + hπ − G(x)ᵀλ with g(x') = 0;  π ← Π_{x'}(π − G(x)ᵀλ/h)
    - L:  x' = x̄ − G(x)ᵀλ  (``direction="old"``, 4.41)  or the nearest point,
          x' = x̄ − G(x')ᵀλ (``direction="new"``, 4.42), which exists for larger steps

    A user's function cannot be stored: give the same constraint again when loading a checkpoint.

    Args:
        g: the constraint function.
        slack: True turns g(q) = 0 into g(q) ≤ 0.
        direction: projection of the overdamped step, "new" or "old".
        batch_dims: how many leading dimensions are a batch of independent blocks.
        name: what to call the function in checkpoints and messages.
    """

    traits = Traits(rowwise=False, geodesic=False, can_fail=True)
    has_initialiser = False

    def __init__(
        self,
        g: Callable[[Tensor], Tensor],
        slack: bool = False,
        direction: str = "new",
        batch_dims: int = 0,
        name: str | None = None,
    ) -> None:
        if direction not in ("new", "old"):
            raise ConstraintError(f"LevelSet: direction must be 'new' (4.42) or 'old' (4.41), got {direction!r}")
        if not isinstance(batch_dims, int) or batch_dims < 0:
            raise ConstraintError(f"LevelSet: batch_dims must be a whole number, at least 0, got {batch_dims!r}")
        self.g = g
        self.has_slack = slack
        self.direction = direction
        self.batch_dims = batch_dims
        self.name = name or getattr(g, "__name__", type(g).__name__)
        self.slots = ("slack", "slack_momentum") if slack else ()

    def __repr__(self) -> str:
        options = f"slack={self.has_slack}, direction={self.direction!r}, batch_dims={self.batch_dims}"
        return f"LevelSet({self.name}, {options})"

    def check(self, q: Tensor, name: str) -> None:
        if q.ndim < self.batch_dims:
            raise ConstraintError(f"LevelSet on {name}: {self.batch_dims} batch_dims, the shape is {tuple(q.shape)}")
        block = self._block(q)
        given = block.clone()
        try:
            m = self.g(given).numel()
            vmap(self.g)(given[None])  # blocks are taken together
            if not m:
                raise ValueError("it returned no constraint")
            if not torch.equal(given.nan_to_num(), block.nan_to_num()):
                raise ValueError("it writes into its argument; let it return a new tensor")
        except Exception as error:
            raise ConstraintError(
                f"LevelSet on {name}: g could not be evaluated on a block of shape {tuple(block.shape)}: {error}"
            ) from error
        if m > block.numel() and not self.has_slack:
            raise ConstraintError(f"LevelSet on {name}: {m} constraints on {block.numel()} parameters leave nothing")

    def _block(self, q: Tensor) -> Tensor:
        """One block, in the precision that steps are computed in."""
        batch, shape = q.shape[: self.batch_dims], q.shape[self.batch_dims :]
        block = q.detach()[(0,) * self.batch_dims] if batch.numel() else q.new_zeros(shape)
        return widened(block)

    # ── vectors ───────────────────────────────────────────────────────────────────────────────
    # A batch of blocks is handled as x: (B, d) or, with slack, (B, d + m).

    def _flat(self, q: Tensor, slack: Tensor | None) -> Tensor:
        rows = q.reshape(q.shape[: self.batch_dims].numel(), -1)
        return rows if slack is None else torch.cat([rows, slack.reshape(rows.shape[0], -1)], 1)

    def _unflatten_(self, x: Tensor, q: Tensor, slack: Tensor | None) -> None:
        d = q.shape[self.batch_dims :].numel()
        q.copy_(x[:, :d].reshape(q.shape))
        if slack is not None:
            slack.copy_(x[:, d:].reshape(slack.shape))

    def _constraint(self, q: Tensor) -> Callable[[Tensor], Tensor]:
        """x: (d or d + m,) → (m,)."""
        block = q.shape[self.batch_dims :]
        d = block.numel()

        def c(x: Tensor) -> Tensor:
            value = self.g(x[:d].reshape(block)).reshape(-1)
            return value + x[d:].square() if self.has_slack else value

        return c

    def _value(self, q: Tensor) -> Callable[[Tensor], Tensor]:
        return vmap(self._constraint(q))

    def _jacobian(self, q: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: linearised(self._value(q), x)[1]

    # ── geometry ──────────────────────────────────────────────────────────────────────────────

    def land_(self, q: Tensor, name: str) -> Landing:
        precision = self._precision(q)
        x = start = self._flat(q, None).to(precision, copy=True)
        plain = LevelSet(self.g, batch_dims=self.batch_dims, name=self.name)
        violated = self._violated(plain._value(q)(x), x, q.dtype)
        outside = violated.any(1)
        if bool(outside.any()):
            try:
                x = self._land(plain, q, x, violated)
            except (ProjectionError, LinAlgError) as error:
                self._refuse_dependent(plain._jacobian(q)(start), name)
                raise ConstraintError(
                    f"LevelSet on {name}: no nearest point with {self.name}(q) = 0 was found from the initial "
                    f"weights; start closer to the manifold ({error})"
                ) from error
            self._unflatten_(x.to(q.dtype), q, None)
        full = self._flat(q, self.lift(q)[0] if self.has_slack else None).to(precision)
        self._refuse_dependent(self._jacobian(q)(full), name)
        distance = (x - start).norm(dim=1)
        return Landing(int(outside.sum()), outside.numel(), (distance * outside).max().item())

    def _precision(self, q: Tensor) -> torch.dtype:
        """Double precision, unless the user's function wants what it closes over to have the weights' own."""
        block = self._block(q)
        try:
            return self.g(block.double()).dtype
        except Exception:
            return block.dtype

    def _refuse_dependent(self, jacobian: Tensor, name: str) -> None:
        if are_dependent(jacobian):
            raise ConstraintError(
                f"LevelSet on {name}: the Jacobian of {self.name} is rank-deficient at the weights (two constraints "
                f"say the same, or a gradient vanishes there); drop a constraint or initialise elsewhere"
            )

    def _violated(self, value: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Which constraints ask for a move. With slack the inside is fine."""
        rounding = 8 * torch.finfo(dtype).eps * (1 + x.norm(dim=1, keepdim=True))
        return torch.ge(value, -rounding.clamp_max(_MARGIN / 2)) if self.has_slack else torch.gt(value.abs(), rounding)

    def _land(self, plain: LevelSet, q: Tensor, x: Tensor, violated: Tensor) -> Tensor:
        """The nearest point; of an inequality, on the constraints that are violated, or become so on the way."""
        if not self.has_slack:
            return torch.where(violated.any(1, keepdim=True), plain._nearest(q, x), x)
        start, active = x, violated
        for _ in range(violated.shape[1]):
            x = torch.where(
                active.any(1, keepdim=True),
                plain._nearest(q, start, active.to(x.dtype), inset(_MARGIN, q.dtype)),
                start,
            )
            again = self._violated(plain._value(q)(x), x, torch.float32) & ~active
            if not bool(again.any()):
                return x
            active = active | again
        return x

    def lift(self, q: Tensor) -> tuple[Tensor, ...]:
        if not self.has_slack:
            return ()
        value = vmap(lambda x: self.g(x.reshape(q.shape[self.batch_dims :])).reshape(-1))(self._flat(q, None))
        xi = (-value).clamp_min(0).sqrt()
        return xi, torch.zeros_like(xi)

    def adopt_(self, x: Phase, precision: torch.dtype) -> None:
        """Move blocks to the nearest point if one is farther off than projections leave them; slack follows.

        A device, which is not asked, only sets the slack from g; what is left is for the step's own projection.
        """
        allowed = 16 * torch.finfo(x.q.dtype).eps + rounding(x, precision, 4)
        off = ~(distance(self._value(x.q), self._flat(x.q, x.slack)) <= allowed)
        if x.q.device.type == "cpu":
            if not bool(off.any()):
                return
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
        time = over(h, start)
        j = self._jacobian(x.q)(start)
        moved, multiplier = self._along(x.q, start + time * pi, j)
        normal = (j.mT @ multiplier)[:, :, 0]
        pi = pi - (torch.where(time == 0, 0.0, normal / time) if isinstance(time, Tensor) else normal / time)
        self._unflatten_(moved, x.q, x.slack)
        self._unflatten_(tangent(self._jacobian(x.q)(moved), pi), x.p, x.slack_p)

    def retract_(self, x: Phase, step: Tensor, slack_step: Tensor | None) -> None:
        start = self._flat(x.q, x.slack)
        target = start + self._flat(step, slack_step)
        if self.direction == "old":
            moved, _ = self._along(x.q, target, self._jacobian(x.q)(start))
        else:
            moved = self._nearest(x.q, target)
        self._unflatten_(moved, x.q, x.slack)

    def _along(self, q: Tensor, target: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        """Newton for λ: x' = target − Jᵀλ with c(x') = 0 (4.41)."""
        value = self._value(q)
        multiplier = torch.zeros(*j.shape[:2], 1, dtype=j.dtype, device=j.device)
        x = target

        def newton() -> Tensor:
            nonlocal x, multiplier
            c, here = linearised(value, x)
            change = solve(here @ j.mT, c[:, :, None])
            multiplier = multiplier + change
            x = target - (j.mT @ multiplier)[:, :, 0]
            return torch.div((j.mT @ change).abs().max(), 1 + x.abs().max())

        self._converge(newton, q)
        return x, multiplier

    def _nearest(self, q: Tensor, target: Tensor, active: Tensor | None = None, margin: float = 0.0) -> Tensor:
        """The nearest point: x' = target − G(x')ᵀλ with c(x') = 0 (4.42), or −margin on ``active`` constraints.

        Each round makes one Gauss–Newton step onto the manifold and one along it towards the target.
        How far along follows from how the direction changed in the last round (Barzilai and Borwein),
        which undoes the overshooting of points far outside.
        """
        value = self._value(q)
        x = target
        last: tuple[Tensor, Tensor] | None = None

        def towards() -> Tensor:
            nonlocal x, last
            c, j = linearised(value, x)
            c = c + margin
            if active is not None:
                j, c = j * active[:, :, None], c * active
            gram = j @ j.mT
            if active is not None:
                gram = gram + torch.diag_embed(1 - active)
            onto = (j.mT @ solve(gram, c[:, :, None]))[:, :, 0]
            along = target - x
            along = along - (j.mT @ solve(gram, j @ along[:, :, None]))[:, :, 0]
            pace = torch.ones_like(x[:, :1])
            if last is not None:
                moved, turned = x - last[0], last[1] - along
                curvature = (moved * turned).sum(1, keepdim=True) / moved.square().sum(1, keepdim=True)
                pace = torch.where(curvature > 0, 1 / curvature, pace).clamp(0.05, 2.0)
            last = (x, along)
            change = pace * along - onto
            x = x + change
            return torch.div(change.abs().max(), 1 + x.abs().max())

        self._converge(towards, q)
        return x

    def _converge(self, iterate: Callable[[], Tensor], q: Tensor) -> None:
        if q.device.type != "cpu":  # reading the error would stall the device
            for _ in range(DEVICE_ITERATIONS):
                iterate()
            return
        smallest = float("inf")
        since = 0
        for _ in range(MAX_ITERATIONS):
            try:
                change = float(iterate())
            except LinAlgError:
                break
            eps = torch.finfo(q.dtype).eps if q.dtype.itemsize >= 4 else 1e-6
            if change <= 2 * eps:
                return
            since = 0 if change < smallest else since + 1
            smallest = min(smallest, change)
            if since > 3 and smallest <= 64 * eps:  # rounding is all that is left
                return
            if not change < 1e6:
                break
        raise ProjectionError(
            f"the projection onto {self.name}(q) = 0 has no root in reach of this step: lower lr, or clip the gradient"
        )

    # ── diagnostics ───────────────────────────────────────────────────────────────────────────

    def residual(self, x: Phase) -> Tensor:
        return self._value(x.q)(self._flat(x.q, x.slack)).abs().max()

    def cotangency(self, x: Phase) -> Tensor:
        j = self._jacobian(x.q)(self._flat(x.q, x.slack))
        return (j @ self._flat(x.p, x.slack_p)[:, :, None]).abs().max()

    def degrees_of_freedom(self, q: Tensor) -> int:
        if self.has_slack:
            return q.numel()
        return q.numel() - q.shape[: self.batch_dims].numel() * self.g(self._block(q)).numel()
