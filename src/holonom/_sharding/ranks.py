"""What a step of an optimizer does besides, where ranks hold parts of its parameters.

A step is the same on all ranks, or none. So what is wrong on one of them is said on all, in the one reduction that a
step begins with. It has: whether a gradient is not finite, whether a rank refuses the step, whether weights were edited
that an owner holds a copy of, and the norms of spheres whose blocks are spread. On a CPU also a number that is the same
on all ranks if they have the same settings, and gradients of the same parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._lines import users_line
from .._step.buckets import Bucket, State, make_buckets
from .._step.edits import project_
from .._step.finite import skip_non_finite
from .._step.run import Gradients, Work
from ..constraints import Constraint, Free
from ..errors import ConstraintError, NonFiniteGradientError, ProjectionError
from .agreement import REFUSED, number_of, raise_for, step_lines
from .backend import Spread
from .collectives import Groups, agree, reduced, union
from .gathered import (
    EVERYONE,
    UNSEEN,
    Gathered,
    GatheredBucket,
    GatheredJointBucket,
    collect,
    owners,
    regather,
    send_momenta,
    send_weights,
)
from .kinds import Kind, kind_of, local_space
from .local import LocalBucket, freedom_of
from .shards import is_sharded, local, piece_of
from .spheres import SummedBucket
from .work import gathered_buckets, local_gradient, localised

Group = dict[str, Any]


class Named(NamedTuple):
    """Gradients that belong to no bucket of this rank, for the finite check."""

    device: torch.device
    names: list[str]


def has_shards(params: Iterable[Tensor]) -> bool:
    return any(map(is_sharded, params))


class Ranks:
    """The sharded parameters of an optimizer: its buckets of them, and what a step exchanges.

    Args:
        groups: the optimizer's ``param_groups``.
        spaces: of its parameters.
    """

    def __init__(self, groups: list[Group], spaces: dict[Tensor, Constraint]) -> None:
        self.groups, self.spaces = groups, spaces
        self.gathered: dict[Tensor, Gathered] = {}
        self._state: dict[Tensor, State] = {}
        self._everyone: Groups | None = None
        self._summed: list[SummedBucket] = []  # those of this step
        self._spread: dict[int, tuple[list[int], Spread]] = {}  # by the id of a group, for parameters of these ids

    # ── buckets ──────────────────────────────────────────────────────────────────────────────────

    def make_buckets(
        self,
        group: Group,
        space: Constraint,
        state: dict[Tensor, State],
        names: list[str],
        versions: dict[int, int],
        said: set[str],
    ) -> list[Bucket]:
        """The buckets of a group on this rank. ``said`` has the warnings that were given."""
        self._everyone, self._spread, self._state = None, {}, state
        members: dict[Any, list[tuple[Tensor, State, str]]] = {}
        plain: list[tuple[Tensor, str]] = []
        whole: list[tuple[Gathered, str]] = []
        for p, name in zip(group["params"], names, strict=True):
            kind = self.kind(space, p)
            if kind is Kind.GATHERED:
                if p.numel():
                    whole.append((self._gather(p, state[p], versions), name))
            elif kind is None:
                plain.append((p, name))
            elif kind is Kind.SUMMED or local(p).numel():
                members.setdefault(_key(space, p, kind), []).append((p, state[p], name))
        self._warn_gathered(space, whole, said)
        own = {**group, "params": [p for p, _ in plain]}
        buckets = make_buckets(own, space, state, [name for _, name in plain]) if plain else []
        for (kind, *_), found in members.items():
            make: Any = SummedBucket if kind is Kind.SUMMED else LocalBucket
            buckets.append(make(space, *map(list, zip(*found, strict=True))))
        if space.traits.joint and whole:
            return [*buckets, GatheredJointBucket(space, [m for m, _ in whole], [name for _, name in whole])]
        owned: dict[Any, list[tuple[Gathered, str]]] = {}
        for member, name in whole:
            if member.q is not None:
                shape = space.view(member.q).shape if space.traits.stacked else None
                key = (member.q.dtype, shape, member.counts, tuple(map(id, member.groups)))
                owned.setdefault(key, []).append((member, name))
        for mine in owned.values():
            buckets.append(GatheredBucket(space, [m for m, _ in mine], [name for _, name in mine]))
        return buckets

    def _warn_gathered(self, space: Constraint, whole: list[tuple[Gathered, str]], said: set[str]) -> None:
        names = [name for member, name in whole if member.owner == EVERYONE]
        if names and f"gathered {space!r}" not in said:
            said.add(f"gathered {space!r}")
            warnings.warn(
                f"{space!r} needs whole tensors: {', '.join(names[:4])}{' …' if names[4:] else ''} are gathered and "
                f"moved on every rank at every step, which takes the memory and the time of unsharded parameters",
                stacklevel=users_line(),
            )

    def kind(self, space: Constraint, p: Tensor) -> Kind | None:
        """How a space works on a parameter; a group with one joint function works on all of it, plain tensors too."""
        if space.traits.joint:
            return Kind.GATHERED if has_shards(self._group_of(p)["params"]) else None
        return kind_of(space, piece_of(p)) if is_sharded(p) else None

    def _group_of(self, p: Tensor) -> Group:
        return next(group for group in self.groups if any(p is q for q in group["params"]))

    def _gather(self, p: Tensor, state: State, versions: dict[int, int]) -> Gathered:
        member = self.gathered.get(p)
        if member is None or member.state is not state:
            pairs = [(self.spaces[q], q) for group in self.groups for q in group["params"]]
            pairs = [(space, q) for space, q in pairs if self.kind(space, q) is Kind.GATHERED]
            chosen = dict(zip([id(q) for _, q in pairs], owners(pairs), strict=True))
            member = self.gathered[p] = Gathered(p, state, chosen[id(p)])
            if member.q is not None:
                versions[id(member.q)] = -1  # edits.UNKNOWN
        return member

    def spread(self, group: Group, moving: Sequence[Tensor]) -> Spread | None:
        """What moves of a group on all ranks; None where no rank holds parts of it."""
        ids = list(map(id, moving))
        if id(group) not in self._spread or self._spread[id(group)][0] != ids:
            found = self._new_spread(group, moving)
            if found is None:
                return None
            self._spread[id(group)] = ids, found
        return self._spread[id(group)][1]

    def told(self, group: Group) -> Groups:
        """Who must hear of a step without a root where no rank holds parts of a group; a device is not read."""
        params = group["params"]
        if not params or has_shards(params) or not self.spaces[params[0]].traits.can_fail:
            return ()
        return self.everyone if all(device.type == "cpu" for device in (self.device, params[0].device)) else ()

    def _new_spread(self, group: Group, moving: Sequence[Tensor]) -> Spread | None:
        if not has_shards(group["params"]) or not moving:
            return None
        space = self.spaces[group["params"][0]]
        found = Spread(space, local(group["params"][0]).device)
        found.elements = sum(p.numel() for p in group["params"])
        if space.traits.joint:
            from .._step.joint import joined

            shapes = [torch.empty(p.shape, device="cpu") for p in moving]
            here = space.joined(shapes, [""] * len(shapes))
            found.degrees_of_freedom = here.degrees_of_freedom(joined(here, shapes))
        for p in moving:
            if not space.traits.joint:
                found.degrees_of_freedom += freedom_of(space, p.shape)
            groups = piece_of(p).everyone if is_sharded(p) else ()
            if groups and groups not in found.groups:
                found.groups.append(groups)
        return found

    # ── a step ───────────────────────────────────────────────────────────────────────────────────

    @property
    def everyone(self) -> Groups:
        """The process groups that reach all ranks which share parameters."""
        if self._everyone is None:
            sharded = [p for group in self.groups for p in group["params"] if is_sharded(p)]
            self._everyone = union(piece_of(p).everyone for p in sharded)
        return self._everyone

    @property
    def device(self) -> torch.device:
        return next(local(p).device for group in self.groups for p in group["params"] if is_sharded(p))

    def members(self) -> list[Gathered]:
        """All gathered parameters, in the order of the optimizer."""
        return [self.gathered[p] for group in self.groups for p in group["params"] if p in self.gathered]

    def prepare(
        self,
        action: str,
        work: list[Work],
        buckets: Iterable[Bucket],
        check: Callable[[list[Work]], None],
        guards: bool,
    ) -> tuple[list[Work], Tensor | None, list[Gathered]]:
        """Check a step on all ranks; give it local gradients, and owners whole ones. Raises on all ranks or on none.

        ``action`` is the method that was called, ``buckets`` are those of all groups, whether they move or not.
        Returns the work, whether the step must be skipped on devices, and the parameters that owners move.
        """
        problem: Exception | None = None
        skip: Tensor | None = None
        here: list[Work] = []
        moving: list[tuple[Gathered, Tensor]] = []
        try:
            here = [localised(one) for one in work]
            check(here)
            moving = self._gathered_gradients(work)
            if guards:
                checked = [Work(one.group, one.buckets, one.gradients) for one in here]
                names = [Named(g.device, [self._name(m)]) for m, g in moving]
                if moving:
                    checked.append(Work(work[0].group, names, [Gradients([g]) for _, g in moving]))  # type: ignore[arg-type]
                skip = skip_non_finite(checked)
        except Exception as error:
            problem = error
        device = self.device
        if problem is not None and device.type != "cpu":
            raise problem  # a device is not read: other ranks wait until their time is out
        edited = any(member.was_edited for member in self.members())
        summed = [b for b in buckets if isinstance(b, SummedBucket)]
        self._summed = [b for one in work for b in one.buckets if isinstance(b, SummedBucket)]
        compared = [(n, own) for n, own in enumerate(self.groups) if has_shards(own["params"]) or self.told(own)]
        lines = step_lines(action, compared, self._state) if device.type == "cpu" else []
        skip, edited = self._reduce(lines, summed, [] if problem else self._summed, problem, skip, edited, device)
        if edited:
            self._take_up_edits(work, check, device)
        return self._with_gathered(work, here, moving), skip, [member for member, _ in moving]

    def _reduce(
        self,
        lines: list[str],
        summed: list[SummedBucket],
        moving: list[SummedBucket],
        problem: Exception | None,
        skip: Tensor | None,
        edited: bool,
        device: torch.device,
    ) -> tuple[Tensor | None, bool]:
        """The reduction that a step begins with.

        Its size does not depend on gradients: ranks that differ in them must get as far as to say so.
        """
        failed = isinstance(problem, NonFiniteGradientError)
        values: list[float] = [failed, problem is not None and not failed, edited]
        if device.type == "cpu":
            values += [number_of(lines), number_of(lines) ** 2]
        flags = torch.zeros(len(values), dtype=torch.float64, device=device)
        for flag, value in zip(flags, values, strict=True):
            if value:  # filled there: a copy from the host would wait for the device, and cannot be captured
                flag.fill_(value)
        if skip is not None:
            flags[0] += skip.to(flags)
        total, *sums = reduced([(flags, self.everyone), *((b.squares().to(flags), b.blocks.groups) for b in summed)])
        by_bucket = dict(zip(map(id, summed), sums, strict=True))
        known = [(b, b.own_squares(by_bucket)) for b in moving]
        if device.type == "cpu":
            raise_for(problem, total.tolist(), lines, self.everyone)
            lost = [name for b, squares in known if not bool(squares.isfinite().all()) for name in b.names]
            if lost:
                raise ConstraintError(f"{', '.join(lost)}: the weights hold NaN or infinity; restore them first")
            edited = bool(total[2])
        elif skip is not None:
            skip = total[0] > 0
        for b, squares in known:
            b.space.squares = squares
        return skip, edited

    def _take_up_edits(self, work: list[Work], check: Callable[[list[Work]], None], device: torch.device) -> None:
        """Owners take over weights that were written from outside, if they can be landed."""
        regather(self.members())
        problem: Exception | None = None
        try:
            check([Work(one.group, gathered_buckets(one), None) for one in work])
        except Exception as error:
            problem = error
        flag = torch.full((), float(problem is not None), dtype=torch.float64, device=device)
        (total,) = reduced([(flag, self.everyone)])
        if problem is not None or (device.type == "cpu" and bool(total)):
            for member in self.members():
                member.seen = UNSEEN  # the next step looks at them again
            raise problem or RuntimeError(REFUSED)

    def _gathered_gradients(self, work: list[Work]) -> list[tuple[Gathered, Tensor]]:
        """The parameters that owners move at this step, with the gradient's part that is here."""
        found: list[tuple[Gathered, Tensor]] = []
        for group in (one.group for one in work if one.spread is not None and one.gradients is not None):
            members = [(self.gathered[p], p.grad) for p in group["params"] if p in self.gathered]
            found += [(m, local_gradient(m.p, grad, self._name(m))) for m, grad in members if grad is not None]
        return found

    def _name(self, member: Gathered) -> str:
        group = self._group_of(member.p)
        place = next(i for i, p in enumerate(group["params"]) if p is member.p)
        names = group.get("param_names")
        return f"'{names[place]}'" if names else f"a parameter of shape {tuple(member.p.shape)}"

    def _with_gathered(self, work: list[Work], here: list[Work], moving: list[tuple[Gathered, Tensor]]) -> list[Work]:
        """The work with the buckets that this rank owns, and their whole gradients."""
        wholes = dict(
            zip([id(m.p) for m, _ in moving], collect([m for m, _ in moving], [g for _, g in moving]), strict=True)
        )
        found = []
        for one, rest in zip(work, here, strict=True):
            own = gathered_buckets(one)
            gradients = rest.gradients
            if gradients is not None:
                gradients = [*gradients, *(Gradients(wholes[id(p)] for p in b.given) for b in own)]  # type: ignore[misc]
            found.append(rest._replace(buckets=[*rest.buckets, *own], gradients=gradients))
        return found

    def settle(self) -> None:
        """Write owners' momenta into the parameters' own state, which checkpoints hold."""
        send_momenta(self.members())

    def project_(self, buckets: Iterable[Bucket], note: Callable[[Iterable[Tensor]], None]) -> None:
        """Move everything to its manifold. Ranks go on where one cannot move a bucket; then all of them raise."""
        regather(self.members())
        problems = [problem for bucket in buckets if (problem := _projected(bucket, note)) is not None]
        self.finish(self.members())
        problem = problems[0] if problems else None
        agree(problem, (), self.everyone, ConstraintError, then="but other weights were moved")

    def finish(self, moved: Sequence[Gathered]) -> None:
        """Write what owners have moved into the parameters; forget what was known of blocks before the step."""
        for bucket in self._summed:
            bucket.space.squares = None
        if moved:
            send_weights(moved)


def _projected(bucket: Bucket, note: Callable[[Iterable[Tensor]], None]) -> Exception | None:
    try:
        bucket.refresh()
        project_(bucket)
    except (ConstraintError, ProjectionError) as error:
        return error
    note(bucket.given)
    return None


def _key(space: Constraint, p: Tensor, kind: Kind) -> tuple[Any, ...]:
    """What parameters of one bucket have in common."""
    piece, part = piece_of(p), local(p)
    shape = space.view(torch.empty(p.shape, device="meta")).shape if space.traits.stacked else None
    own: Any = None
    if not isinstance(space, Free) and local_space(space, piece) is not space:
        own = piece.mesh, piece.shape, piece.placements
    cut = tuple(map(id, piece.holders)) if kind is Kind.SUMMED else piece.counts_here
    return kind, p.dtype, part.device, shape, tuple(map(id, piece.everyone)), cut, own
