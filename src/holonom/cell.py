"""A cell: the parameters of one group that one call moves together, and their phase as plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import fuse
from .act import Act, Cue, prepare
from .constraints.base import MOMENTA, Constraint, Phase
from .counter import Normals, Spec
from .errors import ProjectionError
from .flows import run_unless
from .lists import Tensors, copy_, plus_scaled, scaled
from .noise import normal

LARGE = 65_536  # entries of a matrix that is not stacked with others
HUGE = 524_288  # entries of tensors, on average, several of which do not stay in the caches

State = dict[str, Any]
How = tuple[bool | None, bool | None]  # a group's (foreach, fuse)
Key = tuple[int | Tensor, int | Tensor, int]  # seed, step, draw; tensors where replicas draw for themselves


class Cell:
    """Parameters of one space, dtype and device (and of one shape, if the space stacks).

    It turns parameters and their state into a :class:`Phase` and runs letters on it. Parameters and
    state are the truth: what is kept between steps, views of them and letters made ready, is kept only as
    long as it would come out the same again.
    """

    def __init__(self, space: Constraint, params: list[Tensor], names: list[str], indices: list[int]) -> None:
        self.space = space
        self.params = params
        self.names = names
        self.indices = indices
        self.elements = sum(p.numel() for p in params)
        self._freedom: int | None = None
        self._fuser = fuse.Fuser(space)
        self._normals: tuple[Any, Normals] | None = None
        self.skip: Tensor | None = None  # true on the device where this step must change nothing
        self._ready: tuple[Cue, Act] | None = None
        self._seen: list[Any] = []
        self._phase: Phase | None = None

    def append(self, p: Tensor, name: str, index: int) -> None:
        self.params.append(p)
        self.names.append(name)
        self.indices.append(index)
        self.elements += p.numel()

    def degrees_of_freedom(self) -> int:
        if self._freedom is None:
            self._freedom = sum(self.space.degrees_of_freedom(p.detach()) for p in self.params)
        return self._freedom

    def select(self, keep: Sequence[bool]) -> Cell:
        """The same cell without some of its parameters (those that got no gradient)."""
        picked = [i for i, yes in enumerate(keep) if yes]
        cell = Cell(
            self.space,
            [self.params[i] for i in picked],
            [self.names[i] for i in picked],
            [self.indices[i] for i in picked],
        )
        cell.elements = self.elements  # what decides about compiling must not depend on one step's gradients
        cell._fuser = self._fuser
        return cell

    def phase(self, state: dict[Tensor, State]) -> Phase:
        """Views of parameters and state, block-shaped; the same ones as long as they lie in the same memory."""
        states = [state[p] for p in self.params]
        # Views keep their memory, so that another tensor at the same address is in the same memory.
        seen: list[Any] = [torch.is_inference_mode_enabled()]
        seen += [(p.data_ptr(), p.stride(), p.shape) for p in self.params]
        seen += [(x.data_ptr(), x.stride()) for own in states for x in own.values()]
        # A tensor that stands for others has no address, and does not say where they lie.
        if self._seen != seen or not all(place[0] for place in seen[1 : len(states) + 1]):
            self._seen = seen
            self._phase = self.views(states)
        assert self._phase is not None
        return self._phase

    def views(self, states: list[State]) -> Phase:
        """The phase made anew from the parameters and their states."""
        view, slots = self.space.view, self.space.slots
        return Phase(
            [view(p.detach()) for p in self.params],
            [view(s[name]) for s in states for name in (*MOMENTA, "last_noise") if name in s],
            [s[slots[0]] for s in states] if slots else [],
            [s[slots[1]] for s in states if slots[1] in s] if len(slots) > 1 else [],
        )

    def widened(self, phase: Phase) -> Phase:
        """The phase with positions in the state's precision: themselves, or copies of half-precision ones."""
        if self.params[0].dtype.itemsize >= 4:
            return phase
        return phase._replace(q=[q.to(state_dtype(q)) for q in phase.q])

    def force(self, gradients: Tensors, group: dict[str, Any]) -> Tensors:
        """∇L + λq, never written into ``p.grad``."""
        dtype = state_dtype(self.params[0])
        if any(g.dtype != dtype for g in gradients):
            gradients = [g.to(dtype) for g in gradients]
        force: Tensors = [self.space.view(g) for g in gradients]
        if group["maximize"]:
            force = scaled(force, -1.0)
        decay = group["weight_decay"]
        if isinstance(decay, Tensor) or decay:
            positions = [self.space.view(p.detach()) for p in self.params]
            force = plus_scaled(force, positions, decay)
        return force

    def specs(self, state: dict[Tensor, State], overdamped: bool) -> list[Spec]:
        """Everything a letter shakes: momenta and slack momenta, or positions and slack."""
        specs = [(p.shape, state_dtype(p), index, 0) for index, p in zip(self.indices, self.params, strict=True)]
        for slot in self.space.slots[:1] if overdamped else self.space.slots[1:]:
            shaken = [state[p][slot] for p in self.params]
            specs += [(x.shape, x.dtype, index, 1) for index, x in zip(self.indices, shaken, strict=True)]
        return specs

    def normals(self, specs: list[Spec], seeds: Tensor) -> Normals:
        """What draws for replicas with seeds of their own; made once."""
        key = (tuple(specs), seeds.ndim)
        if self._normals is None or self._normals[0] != key:
            self._normals = (key, Normals(specs, seeds.ndim, self.params[0].device))
        return self._normals[1]

    def noise(self, specs: list[Spec], normals: Normals | None, key: Key, compiled: bool) -> Tensors:
        """Normals for everything a letter shakes, block-shaped."""
        seed, step, draw = key
        if normals is None:
            assert isinstance(seed, int)
            assert isinstance(step, int)
            device = self.params[0].device
            drawn = [normal(shape, dtype, device, seed, step, draw, *where) for shape, dtype, *where in specs]
        else:
            assert isinstance(seed, Tensor)
            assert isinstance(step, Tensor)
            drawn = self._fuser.draw(normals, seed, step, draw, compiled)
        count = len(self.params)
        return [self.space.view(x) for x in drawn[:count]] + drawn[count:]

    def ready(self, cue: Cue, thermostat: Tensor | None) -> Act:
        """Letters with their numbers, made anew only where a number changed or is a tensor."""
        if thermostat is not None or not cue.plain or torch.compiler.is_compiling():
            return prepare(cue, thermostat, self.space.geodesic)
        if self._ready is None or self._ready[0] != cue:
            self._ready = cue, prepare(cue, None, self.space.geodesic)
        return self._ready[1]

    def run(
        self, phase: Phase, act: Act, force: Tensors, noises: Sequence[Tensors], step: int, last: bool, how: How
    ) -> None:
        """Run letters on a phase."""
        word, numbers, _ = act
        if torch.compiler.is_compiling():  # as part of a larger pass
            run_unless(self.skip, self.space, word, phase, force, numbers, noises, step, last)
            return
        foreach, wanted = how
        if self.space.fusible and fuse.worth_it(wanted, self.elements, step):
            self._fuser(self.skip, word, phase, force, numbers, noises, step, last, lasting=phase is self._phase)
            return
        space, beat = self.space, step
        if self.params[0].dtype.itemsize < 4:
            # Half precision rounds so much that what is done now and then must be done always.
            space, beat = space.rounded, 0
        try:
            if foreach is False or (foreach is None and _outgrow_caches(phase.q)):
                for i in range(len(phase.q)):
                    one = fuse.cut(phase, force, numbers, noises, [i])
                    run_unless(self.skip, space, word, *one, beat, last)
            else:
                run_unless(self.skip, space, word, phase, force, numbers, noises, beat, last)
        except ProjectionError as error:
            if phase.p and self.space.leans:
                self.space.project_(phase, phase.p)  # as the drift that failed would have done
                for p in phase.p:
                    torch.nan_to_num_(p, 0.0, 0.0, 0.0)  # where a gradient was too large for its product
            raise ProjectionError(f"{', '.join(self.names)}: {error}") from None


def _outgrow_caches(xs: Tensors) -> bool:
    """Whether letters had better go tensor by tensor, so that one finds in the caches what the last one left there.

    On a CPU multi-tensor operations are loops over the tensors, and save only calls.
    """
    return not xs[0].is_cuda and len(xs) > 1 and sum(x.numel() for x in xs) >= HUGE * len(xs)


def stacked(xs: Tensors) -> Tensors:
    """Matrices of one shape as a single batch, behind any dimensions they have in front.

    On a CPU a large matrix is work enough for all cores, and the copy would not pay.
    """
    pays = len(xs) > 1 and (xs[0].is_cuda or xs[0].numel() < LARGE)
    return [torch.stack(xs, -3)] if pays else xs


def unstack_(batch: Tensors, tensors: Tensors) -> None:
    """Write a batch back to the tensors it was made from."""
    parts = batch if len(batch) == len(tensors) else list(batch[0].unbind(-3))
    changed = [(x, part) for x, part in zip(tensors, parts, strict=True) if x is not part]
    if changed:
        copy_([x for x, _ in changed], [part for _, part in changed])


def state_dtype(p: Tensor) -> torch.dtype:
    """Half precision keeps its momenta and slack in float32."""
    return p.dtype if p.dtype.itemsize >= 4 else torch.float32
