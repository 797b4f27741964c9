r"""Spheres whose blocks are spread over ranks: norms and products are sums over the ranks that hold a block.

All blocks of a bucket are one vector here, so that a drift takes one reduction of three numbers a block:

- B and O add to the momentum as they are. Their part along x, which :class:`~holonom.constraints.Sphere` removes at
  once, stays until the next drift: Π is linear and x does not move between drifts.
- A: with x·x, x·π and π·π the tangent momentum is π − x(x·π)/r², its square π·π − 2a(x·π) + a²(x·x), a = (x·π)/r²;
  then the great circle of :class:`~holonom.constraints.Sphere`.
- L: Euler–Maruyama, then one reduction of x·x.

Slack variables are one number a block. All ranks that hold a block keep and move them alike.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._step.buckets import SIZES, State
from .._step.integrate import Phase, Scalar, add_scaled_
from .._torch import copy_, version
from ..constraints import Constraint, Sphere
from ..constraints.base import Traits, inset, rounding
from .collectives import Groups, reduced
from .kinds import block_numbers, lead_of
from .local import LocalBucket
from .shards import Piece, local


class Blocks:
    """Which entry of a flat vector of local tensors belongs to which block, and who holds the others."""

    def __init__(self, space: Sphere, pieces: Sequence[Piece], device: torch.device) -> None:
        self.groups: Groups = pieces[0].holders
        self.shapes = [piece.local_shape for piece in pieces]
        self.lengths = [shape.numel() for shape in self.shapes]
        self.counts = [lead_of(space, piece.shape).numel() for piece in pieces]
        starts = [sum(self.counts[:i]) for i in range(len(pieces))]
        numbers = [block_numbers(space, piece) + start for piece, start in zip(pieces, starts, strict=True)]
        self.summed = [[d for d, n in enumerate(own.shape) if n == 1] for own in numbers]
        self.terms = terms_of(torch.cat([own.reshape(-1) for own in numbers]), sum(self.counts)).to(device)
        self.numbers = [own.to(device) for own in numbers]

    def here(self, a: Tensor, b: Tensor) -> Tensor:
        """a·b of every block, as far as its entries are here."""
        found = [a.new_zeros(1)]
        parts = zip(torch.split(a, self.lengths), torch.split(b, self.lengths), strict=True)
        for (x, y), shape, dims in zip(parts, self.shapes, self.summed, strict=True):
            product = (x * y).reshape(shape)
            found.append((product.sum(dims) if dims else product).reshape(-1))
        # Not index_add_, which adds in any order on a GPU: a resumed run is equal bit for bit.
        return torch.cat(found)[self.terms].sum(-1)

    def dots(self, *pairs: tuple[Tensor, Tensor]) -> list[Tensor]:
        """a·b of every block for every pair, by one reduction."""
        return reduced([(self.here(a, b), self.groups) for a, b in pairs])

    def spread(self, values: Tensor) -> Tensor:
        """One number a block → one an entry."""
        found = [
            values[numbers].expand(shape).reshape(-1) for numbers, shape in zip(self.numbers, self.shapes, strict=True)
        ]
        return torch.cat(found)


def terms_of(numbers: Tensor, blocks: int) -> Tensor:
    """Which terms each block is the sum of, a row a block. ``numbers``: the block of every term.

    Terms are counted from 1; rows are filled up with 0, for a term that is zero. Rows have about one length: the blocks
    of a bucket are of one kind, such as all rows, or all heads.
    """
    sizes, order = torch.bincount(numbers, minlength=blocks), torch.argsort(numbers, stable=True)
    found = torch.zeros(blocks, max([1, *sizes.tolist()]), dtype=torch.int64)
    rows = numbers[order]
    found[rows, torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[rows]] = order + 1
    return found


class SummedSphere(Sphere):
    """A sphere whose phases are flat: q and p of all local entries, slack and radius of all blocks."""

    traits = Traits(rowwise=False)
    squares: Tensor | None = None  # x·x of the positions that a step starts at, without slack

    @classmethod
    def of(cls, space: Sphere, blocks: Blocks) -> SummedSphere:
        new = cls.__new__(cls)
        new.__dict__.update(copy.copy(space).__dict__)
        new.blocks = blocks
        return new

    blocks: Blocks

    def view(self, q: Tensor) -> Tensor:
        return q

    def is_view(self, q: Tensor) -> bool:
        return True

    def readable(self, x: Tensor) -> Tensor:
        return x

    def write_(self, q: Tensor, block: Tensor) -> None:
        q.copy_(block)

    def check(self, q: Tensor, name: str) -> None:
        pass

    def radius_of(self, q: Tensor, sizes: Tensor | None = None) -> Scalar:
        return 1.0  # the bucket knows that of every block

    def _with_slack(self, dots: Tensor, a: Any, b: Any) -> Tensor:
        return dots if a is None or b is None else torch.addcmul(dots, a, b)

    def adopt_(self, x: Phase, precision: torch.dtype) -> None:
        """As :meth:`holonom.constraints.Sphere.adopt_`; the next drift makes the momenta tangent."""
        squares = self.blocks.dots((x.q, x.q))[0] if self.squares is None else self.squares
        self.squares = None
        square = x.radius**2
        error = self._with_slack(squares, x.slack, x.slack).div(square).sub_(1).abs_()
        differs = ~(error <= 32 * torch.finfo(x.q.dtype).eps + rounding(x, precision, 4))
        if x.slack is None:
            scale, moved = x.radius * squares.rsqrt(), squares > 0
        else:
            inside = torch.ones_like(squares) * square * (1 - inset(self.margin, precision)) ** 2
            moved = square - squares <= 8 * torch.finfo(squares.dtype).eps * square
            slack = (square - torch.where(moved, inside, squares)).sqrt()
            x.slack.copy_(torch.where(differs, torch.where(x.slack < 0, -slack, slack), x.slack))
            scale = (inside / squares).sqrt()
        x.q.mul_(self.blocks.spread(torch.where(differs & moved, scale, 1.0)))

    def kick_(self, x: Phase, force: Tensor, h: Scalar) -> None:
        add_scaled_(x.p, force, -h)

    def project_(self, x: Phase, p: Tensor, slack_p: Tensor | None = None) -> None:
        """Left to the next drift."""

    def drift_(self, x: Phase, h: Scalar) -> None:
        qq, qp, pp = self.blocks.dots((x.q, x.q), (x.q, x.p), (x.p, x.p))
        qq, qp = self._with_slack(qq, x.slack, x.slack), self._with_slack(qp, x.slack, x.slack_p)
        pp = self._with_slack(pp, x.slack_p, x.slack_p)
        along = qp / x.radius**2
        speed2 = (pp - 2 * along * qp + along.square() * qq).clamp_min_(0)
        across = qp - along * qq
        omega = speed2.sqrt() / x.radius
        angle = omega * h
        cos, sine = torch.cos(angle), torch.sinc(angle / math.pi) * h  # sine is sin(ωh)/ω
        norm2 = cos.square() * qq + 2 * cos * sine * across + sine.square() * speed2
        scale = norm2.rsqrt().mul_(x.radius)
        numbers = (cos - sine * along) * scale, sine * scale, cos, cos * along + omega.square() * sine
        for part, momentum, own in (
            (x.q, x.p, list(map(self.blocks.spread, numbers))),
            (x.slack, x.slack_p, list(numbers)),
        ):
            if part is not None and momentum is not None:
                moved = torch.addcmul(part * own[0], momentum, own[1])  # both before either is written
                momentum.mul_(own[2]).addcmul_(part, own[3], value=-1)
                part.copy_(moved)

    def retract_(self, x: Phase, step: Tensor, slack_step: Tensor | None) -> None:
        moved = step.add_(x.q)
        slack = None if slack_step is None else slack_step.add_(x.slack)
        norms2 = self._with_slack(self.blocks.dots((moved, moved))[0], slack, slack)
        scale = norms2.rsqrt_().mul_(x.radius)
        x.q.copy_(moved.mul_(self.blocks.spread(scale)))
        if x.slack is not None and slack is not None:
            x.slack.copy_(slack.mul_(scale))

    def tangent(self, x: Phase) -> list[Tensor]:
        if x.p is None:
            return []
        along = self._with_slack(self.blocks.dots((x.q, x.p))[0], x.slack, x.slack_p) / x.radius**2
        found = [torch.addcmul(x.p, x.q, self.blocks.spread(along), value=-1)]
        return found if x.slack_p is None else [*found, torch.addcmul(x.slack_p, x.slack, along, value=-1)]

    def residual(self, x: Phase) -> Tensor:
        squares = self._with_slack(self.blocks.dots((x.q, x.q))[0], x.slack, x.slack)
        error: Tensor = squares / x.radius**2 - 1
        return error.abs().max()

    def holds(self, x: Phase, precision: torch.dtype) -> bool:
        return bool(self.residual(x) <= 32 * torch.finfo(x.q.dtype).eps + rounding(x, precision, 4))

    def cotangency(self, x: Phase) -> Tensor:
        dots = self._with_slack(self.blocks.dots((x.q, x.p))[0], x.slack, x.slack_p)
        error: Tensor = dots / x.radius
        return error.abs().max()


class Energy(NamedTuple):
    """A part of Σ p², and whether sums over all ranks count it here."""

    counts: bool
    value: Tensor


class SummedBucket(LocalBucket):
    """Parameters of one group and mesh whose blocks several ranks hold together: one flat phase."""

    space: SummedSphere

    def __init__(self, space: Sphere, given: list[Tensor], whole_states: list[State], names: list[str]) -> None:
        super().__init__(space, given, whole_states, names)
        self.blocks = Blocks(space, self.pieces, self.device)
        self.space = SummedSphere.of(space, self.blocks)
        self.constrained, self.constrained_ids = [], []  # edits are seen by their norms, on all ranks alike
        self._replica_dims = 0
        self._radii: tuple[Tensor, int, Tensor] | None = None  # a radius that is a tensor, its version, its copy
        self.origin: tuple[SummedBucket, list[int]] = self, list(range(len(given)))

    def _part(self, where: list[int]) -> SummedBucket:
        given, states = [self.given[i] for i in where], [self.whole_states[i] for i in where]
        part = SummedBucket(self.whole_space, given, states, [self.names[i] for i in where])  # type: ignore[arg-type]
        part.origin = self, where
        return part

    @property
    def _joins(self) -> bool:
        return True

    def _locate(self) -> list[list[Any]]:
        found = super()._locate()
        self.constrained = []
        return found

    def check_view(self, p: Tensor, name: str) -> None:
        pass

    def units(self) -> list[Any]:
        return [self._part([i]) for i in range(len(self.given))]

    def landed_as(self) -> tuple[Constraint, list[Tensor]]:
        """Whole blocks, gathered."""
        return self.whole_space, self.given

    def agrees(self, phases: Sequence[Phase]) -> bool:
        return False  # norms are known from the reduction before the step

    def radii(self) -> Scalar:
        """One number, or one a block."""
        if SIZES in self.states[0]:
            return torch.cat([state[SIZES].reshape(-1) for state in self.states]).to(self.dtype)
        radius: Any = self.whole_space.radius  # type: ignore[attr-defined]
        if not isinstance(radius, Tensor):
            return float(radius)
        known = self._radii
        if known is None or known[0] is not radius or known[1] != version(radius):
            values = radius.to(self.device, self.dtype)  # a copy from the host waits for the device
            each = [values.expand(n) if values.ndim == 0 else values.reshape(-1) for n in self.blocks.counts]
            self._radii = known = radius, version(radius), torch.cat(each)
        return known[2]

    def squares(self) -> Tensor:
        """x·x of every block without slack, as far as its entries are here."""
        q = torch.cat([local(p).detach().reshape(-1) for p in self.given]).to(self.dtype)
        return self.blocks.here(q, q)

    def own_squares(self, sums: dict[int, Tensor]) -> Tensor:
        """The sums over ranks of :meth:`squares`, which are given by the id of the bucket that this is a part of."""
        whole, where = self.origin
        parts = torch.split(sums[id(whole)], whole.blocks.counts)
        return torch.cat([parts[i] for i in where]).to(self.dtype)

    def phases(self) -> list[Phase]:
        self.refresh()
        return self.load(self.views(), copy=True)

    def keep_momenta(self, phases: Sequence[Phase]) -> None:
        self._store(self.views(), phases[0], None, ("p", "slack_p"))

    def load(self, views: list[Phase], copy: bool) -> list[Phase]:
        return [super().load(views, copy)[0]._replace(radius=self.radii())]

    def store(self, views: list[Phase], phases: Sequence[Phase], skip: Tensor | None) -> None:
        self._store(views, phases[0], skip, ("q", "p", "slack", "slack_p"))

    def _store(self, views: list[Phase], phase: Phase, skip: Tensor | None, fields: tuple[str, ...]) -> None:
        for field in fields:
            olds, new = [getattr(x, field) for x in views], getattr(phase, field)
            if olds[0] is None:
                continue
            if skip is not None:
                new = torch.where(skip.to(new.device), self._join(olds), new)
            parts = torch.split(new, [x.numel() for x in olds])
            copy_(olds, [part.reshape(x.shape) for part, x in zip(parts, olds, strict=True)])

    def energies(self, phases: Sequence[Phase]) -> list[Energy]:
        """Σ p² of the tangent momenta: entries lie here, slack variables on all ranks alike."""
        first, *slack = self.space.tangent(phases[0])
        is_first = not any(self.pieces[0].coordinate)
        return [Energy(self.counts, first.square().sum()), *(Energy(is_first, m.square().sum()) for m in slack)]
