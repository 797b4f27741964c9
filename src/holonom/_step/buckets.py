"""Buckets: the parameters of one group that move together, their state, and the phases letters work on.

A bucket is a cache of views. It is valid while its group, parameters and state dicts are the same objects and their
memory stays where it is; hyperparameters and gradients are never part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._devices import is_host
from .._random.philox import Layout, Part
from .._torch import copy_, is_traced, version
from ..constraints.base import MOMENTA, Constraint
from ..constraints.free import Free
from .integrate import Normals, Phase, Scalar, over

State = dict[str, Any]
MOVED = (*MOMENTA, "last_noise")  # state of a parameter's shape that is viewed as its blocks
RECORDED = ("reference", "virial")  # state that is there while temperatures are recorded
SIZES = "radius"  # state of a parameter whose radii or scales are those of its initial weights
MAX_PARTS = 32  # selections that a bucket remembers
MAX_STACKED = 65_536  # entries of a matrix; on a CPU a larger one keeps all cores busy, and the copy would not pay
MAX_STACK = 1 << 24  # entries of a stack on a device: products fill it, and work on copies of one stack at a time
MAX_PADDED = 1 << 20  # entries of a matrix; on a device smaller ones cost less than the launches of more stacks


def state_dtype(p: Tensor) -> torch.dtype:
    """Half precision keeps its momenta and slack in float32."""
    return p.dtype if p.dtype.itemsize >= 4 else torch.float32


class Bucket:
    """Parameters of one space, dtype and device (and of one shape, where the space stacks them).

    Where ranks hold parts of parameters, ``groups`` are the process groups that sums over all of them go over, and
    ``counts`` says whether what is here is counted there. ``starts`` has the number of every part's first entry in its
    parameter; None if the entries do not follow each other there.
    """

    counts: bool = True
    groups: tuple[Any, ...] = ()

    def __init__(self, space: Constraint, params: list[Tensor], states: list[State], names: list[str]) -> None:
        self.params, self.states, self.names = params, states, names
        self.given = params  # as the optimizer has them; of a DTensor, ``params`` holds the local tensor
        self.device = params[0].device
        self.dtype = state_dtype(params[0])
        self.precision = params[0].dtype
        self.narrow = self.dtype != self.precision
        self.space = space.in_half_precision() if self.narrow else space
        self.elements = sum(p.numel() for p in params)
        self.degrees_of_freedom = self._count_freedom(space)
        self.streams = [int(s["stream"]) for s in states if "stream" in s]
        self.kept: dict[Any, Any] = {}  # what a backend needs to know of the memory; valid as long as the views
        self.constrained = [] if isinstance(space, Free) else params
        self.constrained_ids = list(map(id, self.constrained))  # of those that are given
        self.starts: list[int | None] = [0] * len(params)  # the numbers of first entries in their parameters
        self.shapes: list[torch.Size] = []
        self._kept_in: list[tuple[State, str]] = []
        self._memory: list[list[Any]] = []
        self._views: list[Phase] = []
        self._copied = list(range(len(params)))  # whose views' positions are copies
        self._parts: dict[tuple[bool, ...], Bucket] = {}
        self._layouts: dict[tuple[int, bool], Layout] = {}
        many, on_host = len(params) > 1, is_host(self.device)
        self._compares = on_host and not self.space.traits.can_fail
        # On a device entries are joined to one vector: a launch costs as much as a small tensor's arithmetic.
        self._stacked = many and space.traits.stacked and (params[0].numel() < MAX_STACKED or not on_host)
        self._heights = [space.view(p.detach()).shape[-2] for p in params] if self._stacked else []
        self._flat = many and space.traits.elementwise and not on_host
        self._replica_dims = int(len({p.shape[:1] for p in params}) == 1)

    def _count_freedom(self, space: Constraint) -> int:
        return sum(space.degrees_of_freedom(p.detach()) for p in self.params)

    def landed_as(self) -> tuple[Constraint, list[Tensor]]:
        """The space and the parameters of a unit that is moved to the nearest point."""
        return self.space, self.params

    def check_view(self, p: Tensor, name: str) -> None:
        """Raise if the space cannot read a parameter that has moved in memory."""
        self.space.check(p.detach(), name)

    def units(self) -> list[Bucket]:
        """Buckets of the parameters that are landed together: each by itself."""
        each = zip(self.params, self.states, self.names, strict=True)
        return [Bucket(self.space, [p], [state], [name]) for p, state, name in each]

    @property
    def _joins(self) -> bool:
        return self._stacked or (self._flat and not is_traced())  # Inductor fuses loops by itself

    def writes(self) -> list[int]:
        """How often the constrained parameters were written in place."""
        return list(map(version, self.constrained))

    def select(self, chosen: Sequence[bool]) -> Bucket | None:
        """The bucket of some of the parameters, such as those that have a gradient; None for none of them."""
        if all(chosen) or not any(chosen):
            return self if all(chosen) else None
        key = tuple(chosen)
        if key not in self._parts:
            if len(self._parts) == MAX_PARTS:
                self._parts.clear()
            where = [i for i, yes in enumerate(key) if yes]
            part = self._part(where)
            part.elements = self.elements  # whether to compile must not depend on one step's gradients
            self._parts[key] = part
        return self._parts[key]

    def _part(self, where: list[int]) -> Bucket:
        params, states = [self.params[i] for i in where], [self.states[i] for i in where]
        return Bucket(self.space, params, states, [self.names[i] for i in where])

    # ── views ────────────────────────────────────────────────────────────────────────────────────

    def refresh(self) -> bool:
        """Make the views again if a radius, or the memory of parameters or state, has changed; returns whether."""
        memory = self._locate()
        # A tensor subclass without an address of its own does not say where its memory is.
        if memory == self._memory and all(memory[0]):
            return False
        for number, state in enumerate(self.states):  # momenta are written through views, by others than steps, too
            self._keep_readable(number, {name: state[name] for name in MOVED if name in state})
        self._kept_in = [
            (s, name)
            for s in self.states
            for name, x in s.items()
            if isinstance(x, Tensor) and name not in ("stream", *RECORDED)
        ]
        self._memory, self._views, self.kept = self._locate(), [], {}
        self._copied = [i for i, p in enumerate(self.params) if not self.space.is_view(p)]
        return True

    def _keep_readable(self, number: int, moved: State) -> None:
        self.states[number].update({name: self.space.readable(x) for name, x in moved.items()})

    @property
    def memory(self) -> list[list[Any]]:
        """Where parameters and state were at the last :meth:`refresh`."""
        return self._memory

    def _locate(self) -> list[list[Any]]:
        """Where the memory of views is, and in which order. One list for each property: this runs at every step."""
        radius = getattr(self.space, "radius", None)  # views hold it, in the parameter's precision
        where = (id(radius), version(radius)) if isinstance(radius, Tensor) else radius
        self.shapes = [p.shape for p in self.params]
        return [
            list(map(Tensor.data_ptr, self.params)),
            list(map(Tensor.stride, self.params)),
            self.shapes,
            list(map(Tensor.data_ptr, [s[name] for s, name in self._kept_in])),
            [where, self.params[0].dtype, torch.is_inference_mode_enabled()],
        ]

    def views(self) -> list[Phase]:
        """One phase a parameter, of block-shaped views, valid until the next :meth:`refresh`.

        Positions whose order in memory allows no view are copies, made anew by every call.
        """
        # Views made outside a trace would be copied in and out.
        if self._copied or is_traced():
            return [self._view(p, s) for p, s in zip(self.params, self.states, strict=True)]
        if not self._views:
            self._views = [self._view(p, s) for p, s in zip(self.params, self.states, strict=True)]
        return self._views

    def _view(self, p: Tensor, state: State) -> Phase:
        names = [name for name in MOVED if name in state]
        momentum = state[names[0]] if names else None
        sizes = (state[SIZES],) if SIZES in state else ()
        slack, slack_p = [*(state.get(slot) for slot in self.space.slots), None, None][:2]
        q = p.detach()
        return Phase(
            self.space.view(q),
            None if momentum is None else self.space.view(momentum),
            slack,
            slack_p,
            self.space.radius_of(q.to(self.dtype) if self.narrow else q, *sizes),
        )

    def phases(self) -> list[Phase]:
        """The present phases, positions in the state's precision."""
        self.refresh()
        return self._widened(self.views())

    def keep_momenta(self, phases: Sequence[Phase]) -> None:
        """Write back the momenta of :meth:`phases` where those are copies."""

    def agrees(self, phases: Sequence[Phase]) -> bool:
        """Whether positions and state are known to agree, as far as the host can tell at little cost.

        False on a device, whose answer would stall the host, and for a space whose steps can fail, which compares
        in :meth:`~holonom.constraints.Constraint.adopt_`.
        """
        return self._compares and all(self.space.holds(x, self.precision) for x in phases)

    def _widened(self, phases: list[Phase]) -> list[Phase]:
        return [x._replace(q=x.q.to(self.dtype)) for x in phases] if self.narrow else phases

    # ── what letters work on ─────────────────────────────────────────────────────────────────────

    def load(self, views: list[Phase], copy: bool) -> list[Phase]:
        """The views themselves, or copies: widened, joined, or because the step may be skipped or fail."""
        if self._joins:
            parts = zip(*(x[:4] for x in views), strict=True)
            q, p, slack, slack_p = (None if xs[0] is None else self._join(xs) for xs in parts)
            radius = views[0].radius
            if isinstance(radius, Tensor) and radius.ndim and self.space.takes_sizes:
                radius = self._join([x.radius for x in views])
            return self._widened([Phase(q, p, slack, slack_p, radius)])  # type: ignore[arg-type]
        phases = self._widened(views)
        return [x.map(torch.clone) for x in phases] if copy else phases

    def store(self, views: list[Phase], phases: Sequence[Phase], skip: Tensor | None) -> None:
        """Write back what is not a view; a true ``skip`` (on the device, never read) leaves what was there."""
        fields = zip(zip(*(x[:4] for x in views), strict=True), zip(*(x[:4] for x in phases), strict=True), strict=True)
        for olds, news in fields:
            if olds[0] is None or olds[0] is news[0]:
                continue
            # One by one, as what is transposed is copied anyway; the compiler does not take such views as outputs.
            if skip is not None and self._stacked and not is_traced():
                for old, new in zip(olds, self._split(news[0].to(olds[0].dtype)), strict=True):
                    torch.where(skip.to(old.device), old, new, out=old)
                continue
            if skip is not None:
                before = [self._join(olds)] if self._joins else olds
                news = tuple(torch.where(skip.to(x.device), old, x) for old, x in zip(before, news, strict=True))
            copy_(olds, self._split(news[0]) if self._joins else news)
        for i in self._copied:
            self.space.write_(self.params[i].detach(), views[i].q)

    def forces(self, gradients: Sequence[Tensor], sign: float, decay: Scalar) -> list[Tensor]:
        """±∇L + λq at the positions before the step; gradients are never written."""
        positions = [p.detach() for p in self.params]
        forces = [g.resolve_neg() for g in gradients]
        if self._joins:
            forces = [self._join([self.space.view(g) for g in forces])]
            positions = (
                [self._join([self.space.view(q) for q in positions])] if isinstance(decay, Tensor) or decay else forces
            )
        forces = [g.to(self.dtype) for g in forces]
        if sign < 0:
            forces = [-g for g in forces]
        if isinstance(decay, Tensor):
            forces = [g + q * over(decay.to(g), q) for g, q in zip(forces, positions, strict=True)]
        elif decay:
            forces = [g.add(q, alpha=decay) for g, q in zip(forces, positions, strict=True)]
        return forces if self._joins else [self.space.view(g) for g in forces]

    def normals(
        self, seeds: Tensor, clock: Tensor, draw: int, overdamped: bool, fill: Callable[..., Tensor]
    ) -> list[Normals]:
        """For every phase of :meth:`load`: normals of q or p and, where there is one, of its slack variable."""
        drawn = self.layout(seeds.ndim, overdamped).draw(seeds, clock, draw, fill)
        count = len(self.params)
        parts = [[self.space.view(z) for z in drawn[:count]], drawn[count:]]
        joined = [[self._join(zs)] if self._joins else zs for zs in parts if zs]
        return list(zip(*([z.to(self.dtype) for z in zs] for zs in joined), strict=True))

    def state_like_phases(self, name: str) -> list[Tensor]:
        """A state of the parameters' shapes, in the shapes of :meth:`load`."""
        views = [self.space.view(state[name]) for state in self.states]
        return [self._join(views)] if self._joins else views

    def _join(self, xs: Sequence[Tensor]) -> Tensor:
        """Matrices as a batch, padded with rows of zeros; entries as one vector (behind the dimension of replicas)."""
        if self.space.traits.stacked:
            heights = [x.shape[-2] for x in xs]
            top = max(heights)
            if len(set(heights)) == 1:
                return torch.stack(list(xs), -3)
            *batch, _, width = xs[0].shape
            rows = xs[0].new_zeros(*batch, top - min(heights), width)
            parts = [part for x in xs for part in (x, rows[..., : top - x.shape[-2], :]) if part.shape[-2]]
            return torch.cat(parts, -2).reshape(*batch, len(xs), top, width)
        return torch.cat([x.reshape(*x.shape[: self._replica_dims], -1) for x in xs], -1)

    def _split(self, x: Tensor) -> list[Tensor]:
        if self.space.traits.stacked:
            parts = zip(x.unbind(-3), self._heights, strict=True)
            return [part[..., :height, :] for part, height in parts]
        sizes = [p.shape[self._replica_dims :].numel() for p in self.params]
        return [part.reshape(p.shape) for part, p in zip(torch.split(x, sizes, -1), self.params, strict=True)]

    def layout(self, replica_dims: int, overdamped: bool) -> Layout:
        key = (replica_dims, overdamped)
        if key not in self._layouts:
            slots = self.space.slots[:1] if overdamped else self.space.slots[1:]
            tensors = [*self.params, *(state[slot] for slot in slots for state in self.states)]
            streams = [2 * stream + part for part in range(1 + len(slots)) for stream in self.streams]
            shapes = [x.shape[replica_dims:] for x in tensors]
            self._layouts[key] = Layout(shapes, streams, self.device, self._noise_parts(slots))
        return self._layouts[key]

    def _noise_parts(self, slots: Sequence[str]) -> list[Part | None]:
        """Of the tensors of a :class:`Layout`: where they lie in larger ones, if they do."""
        return []


def make_buckets(
    group: dict[str, Any], space: Constraint, state: dict[Tensor, State], names: list[str]
) -> list[Bucket]:
    """The buckets of a group; empty parameters are in none, unless one function takes all of the group's tensors."""
    if space.traits.joint:
        from .joint import JointBucket

        params = group["params"]
        return [JointBucket(space, params, [state[p] for p in params], names)] if params else []
    members: dict[tuple[Any, ...], list[tuple[Tensor, State, str]]] = {}
    for p, name in zip(group["params"], names, strict=True):
        if p.numel():
            key = (p.dtype, p.device, stack_of(space, p) if space.traits.stacked else None)
            members.setdefault(key, []).append((p, state[p], name))
    parts = [part for found in members.values() for part in (stacks(found) if space.traits.stacked else [found])]
    return [Bucket(space, *map(list, zip(*part, strict=True))) for part in parts]  # type: ignore[arg-type]


Member = tuple[Tensor, State, str]


def stacks(members: list[Member]) -> list[list[Member]]:
    """Parameters in stacks of limited size; on a CPU they are one, because large ones are not stacked there."""
    found: list[list[Member]] = []
    entries = 0
    for member in members:
        p = member[0]
        entries += p.numel()
        if not found or (entries > MAX_STACK and not is_host(p)):
            found.append([])
            entries = p.numel()
        found[-1].append(member)
    return found


def stack_of(space: Constraint, p: Tensor) -> tuple[int | bool, ...]:
    """What the parameters of a stack have in common: the shape or, of small matrices on a device, all but the height.

    Square matrices stay among themselves: their momenta are other ones.
    """
    shape = space.view(p.detach()).shape
    if not space.traits.padded or is_host(p) or p.numel() > MAX_PADDED:
        return shape
    return (*shape[:-2], shape[-1], shape[-2] == shape[-1])
