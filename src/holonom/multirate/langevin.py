"""Langevin words on several time scales: own friction, temperature and constraint on each (thesis 5.9.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from .. import engine, hyper
from ..cell import Cell
from ..errors import SchemeError
from ..optimizer import Langevin
from ..scheme import compile_word
from .clock import Clock, Group, check_covered, is_due
from .due import DueOptimizer
from .spread import spread


class MultirateLangevin(Langevin, Clock):
    """A :class:`holonom.Langevin` whose groups may take their gradient every ``every`` steps.

    ``lr`` is the fast time step. A group with ``every=k`` runs its word with the slow step H = k·lr. With
    ``drift=True`` its drift along the manifold is spread evenly over the k steps, and the other letters
    act where they stand in the word (see :func:`holonom.multirate.spread.spread`): the kick at its turn,
    friction and noise once in a cycle. Without drift the whole word runs at its turn. A group with
    ``every=1`` is a Langevin group. Take gradients as for :class:`holonom.Multirate`, inside ``due()``.

    The word OBA at τ = 0 is Algorithm 5.1 with μ = e^{−γH} and SGD's fast step k·lr².

    Args:
        params: parameter groups with the option ``every`` (1 by default).
        lr: the fast time step.
        drift: drift at every step; groups of the overdamped words L and M have no momentum to drift with.
        model: check that the groups hold all of its trainable parameters.
        options: those of :class:`holonom.Langevin`.
    """

    step = DueOptimizer.step

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        *,
        drift: bool = True,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        items = list(params)
        if not items or not isinstance(items[0], dict):
            items = [{"params": items}]
        super().__init__([{"drift": drift, **group} for group in items], lr, **options)
        self.defaults["drift"] = drift
        check_covered(model, self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            group = {**self.defaults, **param_group}
            if group["every"] != 1 and group["drift"] and compile_word(group["scheme"]).overdamped:
                raise SchemeError(
                    f"scheme {group['scheme']!r} has no momentum to drift with between gradients: pass drift=False, or "
                    f"scheme='BAOAB' with friction=float('inf'), the same method with a momentum"
                )
        super().add_param_group(param_group)

    def _move(self, groups: list[Group]) -> None:
        chosen = {id(group) for group in groups}
        moving: list[tuple[Group, list[Cell]]] = [
            (group, self._moving_cells(group, cells))
            for group, cells in zip(self.param_groups, self._all_cells(), strict=True)
            if id(group) in chosen
        ]
        self._look_over(moving)
        with self._guarded([cells for group, cells in moving if is_due(group)]):
            for group, cells in moving:
                advance(group, cells, self.state)
        self._ledger.note(p for _, cells in moving for cell in cells for p in cell.params)

    def _moving_cells(self, group: Group, cells: list[Cell]) -> list[Cell]:
        moving = {id(p) for p in self._moving(group)}
        kept = []
        for cell in cells:
            keep = [id(p) in moving for p in cell.params]
            if any(keep):
                kept.append(cell if all(keep) else cell.select(keep))
        return kept


def advance(group: Group, cells: list[Cell], state: engine.StateMap) -> None:
    """One fast step of a group: its word, or the part of a slow word that belongs to this step."""
    if group["every"] > 1:
        run_part(group, cells, state)
        cells = []  # engine.advance then only counts
    engine.advance(group, cells, state)


def run_part(group: Group, cells: list[Cell], state: engine.StateMap) -> None:
    """The part of a slow step, H = every·lr, that belongs to this fast one."""
    every, drift = group["every"], group["drift"]
    h = hyper.time_step(group) * every
    if not cells or (isinstance(h, float) and h == 0.0):
        return
    scheme = compile_word(group["scheme"])
    at = group["clock"] % every
    owed: Any = 0.0
    if at == 0:
        owed = group["owed"]
        if owed is None:
            owed = h if scheme.starts_owing or group.get("starts_owing") else 0.0
    program = scheme.program if engine.is_owed(owed) else scheme.head
    if drift:
        program = spread(program, every)[at]
    # Between turns there is no gradient: nothing may be done to it, and a kernel compiled for one does not fit.
    quiet = group if at == 0 else {**group, "weight_decay": 0.0, "maximize": False, "fuse": False}
    engine.run(quiet, cells, state, program, h, owed)
    cycle_ends = at == every - 1 or not drift
    group["owed"] = h if scheme.tail and cycle_ends else 0.0
