"""Running a compiled program on the cells of one group."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from . import hyper
from .act import Cue, time_of
from .cell import Cell, Key, State, stacked, unstack_
from .constraints.base import MOMENTA, Phase
from .counter import Normals, Spec
from .fuse import worth_it
from .lists import Scalar, Tensors, sum_of_squares
from .scheme import Op, compile_word

StateMap = dict[Tensor, State]


def advance(group: dict[str, Any], cells: list[Cell], state: StateMap) -> None:
    """One step of the group's word; lr = 0 changes nothing but the count."""
    h = hyper.time_step(group)
    scheme = compile_word(group["scheme"])
    if cells and not (isinstance(h, float) and h == 0.0):
        owed = group["owed"]
        if owed is None:
            owed = h if scheme.starts_owing or group.get("starts_owing") else 0.0
        program = scheme.program if is_owed(owed) else scheme.head
        run(group, cells, state, program, h, owed)
        group["owed"] = _debt(group["owed"], h) if scheme.tail else 0.0
    group["step"] += 1
    if isinstance(group["seed"], Tensor) and group["params"]:
        state[group["params"][0]]["clock"].add_(1)


def check_word(group: dict[str, Any], state: StateMap) -> None:
    """A word assigned after construction may need what was never created."""
    if not group["params"]:
        return
    scheme, own = compile_word(group["scheme"]), state[group["params"][0]]
    if scheme.overdamped:
        able = scheme.word != "M" or "last_noise" in own
    else:
        able = any(name in own for name in MOMENTA) and (not scheme.thermostatted or "thermostat" in own)
    if not able:
        raise ValueError(
            f"scheme {scheme.word!r} was assigned to a group that was built for another word and has no state for it; "
            f"build a new optimizer from the weights"
        )


def pay_debt(group: dict[str, Any], cells: list[Cell], state: StateMap) -> None:
    """Run the letters a rotated word still owes, without ending a step."""
    tail = compile_word(group["scheme"]).tail
    if tail and cells and group["owed"] is not None and is_owed(group["owed"]):
        run(group, cells, state, tail, 0.0, group["owed"], ends_step=False)
        group["owed"] = 0.0


def run(
    group: dict[str, Any],
    cells: list[Cell],
    state: StateMap,
    program: tuple[Op, ...],
    h: Scalar,
    owed: Scalar,
    ends_step: bool = True,
) -> None:
    """Run a program on parameters and state, from the gradients at hand."""
    work = [Work(cell, group, state) for cell in cells]
    gradients = [part.gradients() for part in work]
    run_program(group, work, [part.batch for part in work], gradients, program, h, owed, ends_step)
    for part in work:
        part.write_back()


def steady(group: dict[str, Any], cells: list[Cell], state: StateMap) -> Callable[[list[Tensors]], None]:
    """The group's step as it is from the second on, as a function of the cells' gradients that a compiler can trace.

    It keeps no count on the host; the clock on the device goes on.
    """
    h = hyper.time_step(group)
    scheme = compile_word(group["scheme"])
    owed = group["owed"]
    program = scheme.program if is_owed(owed) else scheme.head
    work = [Work(cell, group, state) for cell in cells]
    for part in work:
        part.source  # noqa: B018  made now, not while a compiler reads along
    states = [[state[p] for p in cell.params] for cell in cells]
    clock = state[group["params"][0]]["clock"]

    def step(gradients: list[Tensors]) -> None:
        # Views made before would be inputs in the memory of others, which compiled programs copy in and out.
        phases = [cell.views(own) for cell, own in zip(cells, states, strict=True)]
        run_program(group, work, phases, gradients, program, h, owed)
        if scheme.tail:
            _debt(owed, h)
        clock.add_(1)

    return step


def _debt(before: Scalar | None, h: Scalar) -> Scalar:
    """h as it is now: schedulers change a tensor lr in place, and what is owed is owed at this step's rate.

    A tensor is written where the last one was, so that a recorded or compiled step finds it in the next round.
    """
    if not isinstance(h, Tensor):
        return h
    return before.copy_(h) if isinstance(before, Tensor) else h.clone()


def is_owed(owed: Scalar) -> bool:
    return isinstance(owed, Tensor) or owed != 0.0


def run_program(
    group: dict[str, Any],
    work: list[Work],
    phases: list[Phase],
    gradients: list[Tensors],
    program: tuple[Op, ...],
    h: Scalar,
    owed: Scalar,
    ends_step: bool = True,
) -> None:
    """Letter by letter over all cells; the thermostat's E sees them together."""
    physics = hyper.physics(group)
    anchor = work[0].anchor
    thermostat = anchor.get("thermostat")
    how = (group["foreach"], group["fuse"])
    seed = group["seed"]
    clock = anchor["clock"] if isinstance(seed, Tensor) else group["step"]
    step = 0 if _repeated(work[0].cell) else group["step"]
    draw = 0 if ends_step else -len(program)  # a debt's noise is not that of the step that follows
    forces = [part.force(own, group) for part, own in zip(work, gradients, strict=True)]
    segments = _segments(program)
    for position, (ops, update) in enumerate(segments):
        last = ends_step and position == len(segments) - 1
        cue = Cue(ops, draw, h, owed, physics)
        for part, phase, force in zip(work, phases, forces, strict=True):
            act = part.cell.ready(cue, thermostat)
            noises = [[] if which is None else part.noise((seed, clock, which)) for which in act.draws]
            part.cell.run(phase, act, force, noises, step, last, how)
        draw += len(ops)
        if update is not None:
            assert thermostat is not None
            momenta = [m for part, phase in zip(work, phases, strict=True) for m in part.cell.space.tangent(phase)]
            energy = sum_of_squares(momenta, keep=thermostat.ndim)
            freedom = sum(part.cell.degrees_of_freedom() for part in work) / thermostat.numel()
            excess = energy.to(thermostat) - freedom * physics.temperature
            thermostat.add_(time_of(update, h, owed) * physics.coupling * excess)


def _repeated(cell: Cell) -> bool:
    """Whether this step is being recorded or compiled for all later ones: what is done now and then is done in each."""
    if torch.compiler.is_compiling():
        return True
    return cell.params[0].is_cuda and torch.cuda.is_current_stream_capturing()


class Work:
    """A cell during one step: its phase, stacked into batches where the space asks for it."""

    def __init__(self, cell: Cell, group: dict[str, Any], state: StateMap) -> None:
        self.cell = cell
        self.anchor = state[group["params"][0]]  # where the group's thermostat and clock live
        self._group, self._state = group, state
        self.phase = cell.phase(state)
        self.batch = cell.widened(self.phase)
        if cell.space.stacks:
            self.batch = Phase(*map(self._stack, self.batch))

    @cached_property
    def source(self) -> tuple[list[Spec], Normals | None, bool]:
        """What a letter's noise is drawn from: all it shakes, who draws, and whether in one compiled pass."""
        group, cell = self._group, self.cell
        specs = cell.specs(self._state, compile_word(group["scheme"]).overdamped)
        normals = cell.normals(specs, group["seed"]) if isinstance(group["seed"], Tensor) else None
        # A draw run word by word costs about ten letters, so compiling it pays ten times sooner.
        return specs, normals, worth_it(group["fuse"], 10 * cell.elements, group["step"])

    def _stack(self, tensors: Tensors) -> Tensors:
        return stacked(tensors) if self.cell.space.stacks else tensors

    def gradients(self) -> Tensors:
        # A lazily negated one is negated now: compilers would read its memory as it is.
        return [p.grad.resolve_neg() for p in self.cell.params if p.grad is not None]

    def force(self, gradients: Tensors, group: dict[str, Any]) -> Tensors:
        return self._stack(self.cell.force(gradients, group))

    def noise(self, key: Key) -> Tensors:
        specs, normals, compiled = self.source
        return self._stack(self.cell.noise(specs, normals, key, compiled))

    def write_back(self) -> None:
        if self.batch is not self.phase:
            for batch, tensors in zip(self.batch, self.phase, strict=True):
                unstack_(batch, tensors)


def _segments(program: tuple[Op, ...]) -> list[tuple[tuple[Op, ...], Op | None]]:
    """Cut a program at its thermostat updates, which need all cells at once."""
    if all(op.letter != "E" for op in program):
        return [(program, None)]
    segments: list[tuple[tuple[Op, ...], Op | None]] = []
    ops: list[Op] = []
    for op in program:
        if op.letter == "E":
            segments.append((tuple(ops), op))
            ops = []
        else:
            ops.append(op)
    return [*segments, (tuple(ops), None)]
