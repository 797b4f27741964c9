"""Running a compiled program on the cells of one group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import hyper
from .cell import Cell, Key, State, stacked, state_dtype, unstack_
from .constraints.base import Phase
from .flows import LETTERS, is_noisy
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
            owed = h if scheme.starts_owing else 0.0
        program = scheme.program if is_owed(owed) else scheme.head
        run_program(group, cells, state, program, h, owed)
        # A copy: schedulers change a tensor lr in place, and what is owed is owed at this step's rate.
        group["owed"] = (h.clone() if isinstance(h, Tensor) else h) if scheme.tail else 0.0
    group["step"] += 1
    if isinstance(group["seed"], Tensor):
        state[group["params"][0]]["clock"].add_(1)


def pay_debt(group: dict[str, Any], cells: list[Cell], state: StateMap) -> None:
    """Run the letters a rotated word still owes, without ending a step."""
    tail = compile_word(group["scheme"]).tail
    if tail and cells and group["owed"] is not None and is_owed(group["owed"]):
        run_program(group, cells, state, tail, 0.0, group["owed"], ends_step=False)
        group["owed"] = 0.0


def is_owed(owed: Scalar) -> bool:
    return isinstance(owed, Tensor) or owed != 0.0


def run_program(
    group: dict[str, Any],
    cells: list[Cell],
    state: StateMap,
    program: tuple[Op, ...],
    h: Scalar,
    owed: Scalar,
    ends_step: bool = True,
) -> None:
    """Letter by letter over all cells; the thermostat's E sees them together."""
    physics = hyper.physics(group)
    thermostat = state[group["params"][0]].get("thermostat")
    work = [_Work(cell, group, state) for cell in cells]
    how = (group["foreach"], group["fuse"])
    seed = group["seed"]
    clock = state[group["params"][0]]["clock"] if isinstance(seed, Tensor) else group["step"]
    # A captured graph is replayed for all later steps: what happens only now and then must happen in every one.
    step = 0 if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing() else group["step"]
    draw = 0 if ends_step else -len(program)  # a debt's noise is not that of the step that follows
    segments = _segments(program)
    for position, (ops, update) in enumerate(segments):
        times = [_time(op, h, owed) for op in ops]
        numbers = [LETTERS[op.letter].numbers(t, physics, thermostat) for op, t in zip(ops, times, strict=True)]
        word = "".join(op.letter for op in ops)
        noisy = [is_noisy(letter, physics) for letter in word]
        last = ends_step and position == len(segments) - 1
        for part in work:
            noises = [
                part.noise(state, letter, (seed, clock, draw + i)) if yes else []
                for i, (letter, yes) in enumerate(zip(word, noisy, strict=True))
            ]
            part.cell.run(part.batch, word, part.force, numbers, noises, step, last, how)
        draw += len(ops)
        if update is not None:
            assert thermostat is not None
            energy = sum_of_squares([m for part in work for m in part.batch.momenta], keep=thermostat.ndim)
            freedom = sum(cell.degrees_of_freedom() for cell in cells) / thermostat.numel()
            excess = energy.to(thermostat) - freedom * physics.temperature
            thermostat.add_(_time(update, h, owed) * physics.coupling * excess)
    for part in work:
        part.write_back()


class _Work:
    """A cell during one step: its phase, stacked into batches where the space asks for it."""

    def __init__(self, cell: Cell, group: dict[str, Any], state: StateMap) -> None:
        self.cell = cell
        # A draw run word by word costs about ten letters, so compiling it pays ten times sooner.
        self.draws_compiled = worth_it(group["fuse"], 10 * cell.elements, group["step"])
        self.phase = cell.phase(state)
        self.force = self._stack(cell.force(state_dtype(cell.params[0]), group))
        self.batch = cell.widened(self.phase)
        if cell.space.stacks:
            self.batch = Phase(*map(self._stack, self.batch))

    def _stack(self, tensors: Tensors) -> Tensors:
        return stacked(tensors) if self.cell.space.stacks else tensors

    def noise(self, state: StateMap, letter: str, key: Key) -> Tensors:
        return self._stack(self.cell.noise(state, letter in "LM", key, self.draws_compiled))

    def write_back(self) -> None:
        if self.batch is not self.phase:
            for batch, tensors in zip(self.batch, self.phase, strict=True):
                unstack_(batch, tensors)


def _segments(program: tuple[Op, ...]) -> list[tuple[tuple[Op, ...], Op | None]]:
    """Cut a program at its thermostat updates, which need all cells at once."""
    segments: list[tuple[tuple[Op, ...], Op | None]] = []
    ops: list[Op] = []
    for op in program:
        if op.letter == "E":
            segments.append((tuple(ops), op))
            ops = []
        else:
            ops.append(op)
    return [*segments, (tuple(ops), None)]


def _time(op: Op, h: Scalar, owed: Scalar) -> Scalar:
    """How long a letter acts: what the last step left of it, and its share of this one."""
    if not op.tail:
        return op.head * h
    return op.tail * owed + op.head * h if op.head else op.tail * owed
