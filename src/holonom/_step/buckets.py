"""Buckets: the parameters of one group that move together, their state, and the phases letters work on.

A bucket is a cache of views. It is valid while its group, parameters and state dicts are the same objects and their
memory stays where it is; hyperparameters and gradients are never part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._random.philox import Layout
from .._torch import version
from ..constraints.base import MOMENTA, Constraint
from .integrate import Normals, Phase, Scalar, over

State = dict[str, Any]
MAX_STACKED = 65_536  # entries of a matrix; on a CPU a larger one keeps all cores busy, and the copy would not pay


def state_dtype(p: Tensor) -> torch.dtype:
    """Half precision keeps its momenta and slack in float32."""
    return p.dtype if p.dtype.itemsize >= 4 else torch.float32


class Bucket:
    """Parameters of one space, dtype and device (and of one shape, where the space stacks them)."""

    def __init__(self, space: Constraint, params: list[Tensor], states: list[State], names: list[str]) -> None:
        self.params, self.states, self.names = params, states, names
        self.device = params[0].device
        self.dtype = state_dtype(params[0])
        self.narrow = self.dtype != params[0].dtype
        self.space = space.in_half_precision() if self.narrow else space
        self.elements = sum(p.numel() for p in params)
        self.degrees_of_freedom = sum(space.degrees_of_freedom(p.detach()) for p in params)
        self._streams = [int(s["stream"]) for s in states if "stream" in s]
        self._memory: list[Any] = []
        self._views: list[Phase] = []
        self._parts: dict[tuple[bool, ...], Bucket] = {}
        self._layouts: dict[tuple[int, bool], Layout] = {}
        small = params[0].numel() < MAX_STACKED or self.device.type != "cpu"
        self._stacks = space.traits.stacked and len(params) > 1 and small

    def select(self, chosen: Sequence[bool]) -> Bucket | None:
        """The bucket of some of the parameters, such as those that have a gradient; None for none of them."""
        if all(chosen) or not any(chosen):
            return self if all(chosen) else None
        key = tuple(chosen)
        if key not in self._parts:
            lists = (self.params, self.states, self.names)
            part = Bucket(self.space, *([x for x, yes in zip(xs, key, strict=True) if yes] for xs in lists))  # type: ignore[arg-type]
            part.elements = self.elements  # whether to compile must not depend on one step's gradients
            self._parts[key] = part
        return self._parts[key]

    # ── views ────────────────────────────────────────────────────────────────────────────────────

    def refresh(self) -> bool:
        """Make the views again if the memory of parameters or state, or a radius, has changed; returns whether it has."""
        radius = getattr(self.space, "radius", None)  # views hold it, in the parameter's precision
        memory: list[Any] = [(id(radius), version(radius)) if isinstance(radius, Tensor) else radius]
        memory += [torch.is_inference_mode_enabled()]
        memory += [(p.data_ptr(), p.stride(), p.shape, p.dtype) for p in self.params]
        state = (x for s in self.states for name, x in s.items() if isinstance(x, Tensor) and name != "stream")
        memory += [(x.data_ptr(), x.stride()) for x in state]
        # A tensor subclass without an address of its own does not say where its memory is.
        if memory == self._memory and all(entry[0] for entry in memory[2 : len(self.params) + 2]):
            return False
        self._memory, self._views = memory, []
        return True

    def views(self) -> list[Phase]:
        """One phase a parameter, of block-shaped views, valid until the next :meth:`refresh`."""
        if torch.compiler.is_compiling():  # views made outside the trace would be copied in and out
            return [self._view(p, s) for p, s in zip(self.params, self.states, strict=True)]
        if not self._views:
            self._views = [self._view(p, s) for p, s in zip(self.params, self.states, strict=True)]
        return self._views

    def _view(self, p: Tensor, state: State) -> Phase:
        momentum = next((state[name] for name in (*MOMENTA, "last_noise") if name in state), None)
        slots = [state.get(slot) for slot in self.space.slots] + [None, None]
        return Phase(
            self.space.view(p.detach()),
            None if momentum is None else self.space.view(momentum),
            *slots[:2],
            self.space.radius_of(p.detach().to(self.dtype) if self.narrow else p.detach()),
        )

    def phases(self) -> list[Phase]:
        """The present phases, positions in the state's precision."""
        self.refresh()
        return self._widened(self.views())

    def _widened(self, views: list[Phase]) -> list[Phase]:
        return [x._replace(q=x.q.to(self.dtype)) for x in views] if self.narrow else views

    # ── what letters work on ─────────────────────────────────────────────────────────────────────

    def load(self, views: list[Phase], copy: bool) -> list[Phase]:
        """The views themselves, or copies: widened, stacked, or because the step may be skipped or fail."""
        phases = self._widened(views)
        if self._stacks:
            return [Phase(*(None if xs[0] is None else torch.stack(xs, -3) for xs in zip(*phases, strict=True)))]
        return [_clone(x) for x in phases] if copy else phases

    def store(self, views: list[Phase], phases: Sequence[Phase], skip: Tensor | None) -> None:
        """Write back what is not a view; a true ``skip`` (on the device, never read) leaves what was there."""
        if self._stacks:
            count = len(self.params)
            phases = [Phase(*xs) for xs in zip(*([None] * count if x is None else x.unbind(-3) for x in phases[0]))]  # type: ignore[union-attr]
        for view, new in zip(views, phases, strict=True):
            for old, x in zip(view[:4], new[:4], strict=True):
                if isinstance(old, Tensor) and isinstance(x, Tensor) and old is not x:
                    old.copy_(x if skip is None else torch.where(skip.to(x.device), old, x))

    def forces(self, gradients: Sequence[Tensor], sign: float, decay: Scalar) -> list[Tensor]:
        """±∇L + λq at the positions before the step; gradients are never written."""
        forces = []
        for p, gradient in zip(self.params, gradients, strict=True):
            g = gradient.resolve_neg().to(self.dtype)
            g = -g if sign < 0 else g
            if isinstance(decay, Tensor):
                g = g + p.detach() * over(decay.to(g), p)
            elif decay:
                g = g.add(p.detach(), alpha=decay)
            forces.append(self.space.view(g))
        return [torch.stack(forces, -3)] if self._stacks else forces

    def normals(
        self, seeds: Tensor, clock: Tensor, draw: int, overdamped: bool, fill: Callable[..., Tensor]
    ) -> list[Normals]:
        """For every phase of :meth:`load`: normals of q or p and, where there is one, of its slack variable."""
        layout = self._layout(seeds.ndim, overdamped)
        drawn = [z.to(self.dtype) for z in layout.draw(seeds, clock, draw, fill)]
        count = len(self.params)
        first, slack = [self.space.view(z) for z in drawn[:count]], drawn[count:]
        if self._stacks:
            return [(torch.stack(first, -3),)]
        return list(zip(first, slack, strict=True)) if slack else [(z,) for z in first]

    def _layout(self, replica_dims: int, overdamped: bool) -> Layout:
        key = (replica_dims, overdamped)
        if key not in self._layouts:
            slots = self.space.slots[:1] if overdamped else self.space.slots[1:]
            tensors = [*self.params, *(state[slot] for slot in slots for state in self.states)]
            streams = [2 * stream + part for part in range(1 + len(slots)) for stream in self._streams]
            self._layouts[key] = Layout([x.shape[replica_dims:] for x in tensors], streams, self.device)
        return self._layouts[key]


def _clone(x: Phase) -> Phase:
    return Phase(*(None if t is None else t.clone() for t in x[:4]), x.radius)  # type: ignore[arg-type]


def make_buckets(group: dict[str, Any], space: Constraint, state: dict[Tensor, State], names: list[str]) -> list[Bucket]:
    """The buckets of a group; empty parameters are in none."""
    members: dict[tuple[Any, ...], list[tuple[Tensor, State, str]]] = {}
    for p, name in zip(group["params"], names, strict=True):
        if p.numel():
            key = (p.dtype, p.device, space.view(p.detach()).shape if space.traits.stacked else None)
            members.setdefault(key, []).append((p, state[p], name))
    return [Bucket(space, *map(list, zip(*found, strict=True))) for found in members.values()]  # type: ignore[arg-type]
