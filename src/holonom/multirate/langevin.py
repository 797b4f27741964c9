"""Langevin words on several time scales: own friction, temperature and constraint on each (thesis 5.9.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from .._step import run
from .._step.buckets import State
from .._step.letters import Numbers, plain
from .._step.run import Gradients, Work
from .._step.state import unland_
from ..errors import PartitionError, SchemeError
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
        try:
            check_covered(model, self.param_groups)
        except PartitionError:
            unland_(self._landed, list(self._landed))
            raise

    @classmethod
    def like_sgd(cls, params: Any, lr: Any, momentum: Any = 0.0, **options: Any) -> Langevin:
        """Not on several time scales: :class:`holonom.Multirate` has SGD's lr and momentum there."""
        raise TypeError(
            "MultirateLangevin has time steps, not SGD's terms: use holonom.Multirate(params, lr, momentum), or give "
            "MultirateLangevin scheme='OBA' with lr=h=√(lr/k) and friction=−ln(momentum)/(k·h) for groups with every=k"
        )

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
        work = []
        for group, buckets in zip(self.param_groups, self._buckets(), strict=True):
            if id(group) in chosen:
                moving = {id(p) for p in self._moving(group)}
                found = [b.select([id(p) in moving for p in b.params]) for b in buckets]
                active = [b for b in found if b is not None]
                gradients = [Gradients(p.grad for p in b.params) for b in active] if is_due(group) else None  # type: ignore[misc]
                work.append(Work(group, active, gradients))
        self._integrate(work, advance)

    def upcoming(self) -> None:
        """Parts of a slow word differ from step to step."""


def advance(work: Work, state: dict[Tensor, State], skip: Tensor | None) -> Tensor | None:
    """One fast step of a group: its word, or the part of a slow word that belongs to this step."""
    if work.group["every"] == 1:
        return run.advance(work, state, skip)
    skip = run_part(work, state, skip)
    run.count(work.group, state, skip)
    return skip


def run_part(work: Work, state: dict[Tensor, State], skip: Tensor | None) -> Tensor | None:
    """The part of a slow step, H = every·lr, that belongs to this fast one."""
    group = work.group
    every, drift, scheme = group["every"], group["drift"], compile_word(group["scheme"])
    h = plain(group["lr"]) * every
    if not work.buckets or (isinstance(h, float) and h == 0.0):
        return skip
    at = group["clock"] % every
    owed: Any = 0.0
    if at == 0:
        owed = run.owed_at_start(group, h) if group["owed"] is None else group["owed"]
    program = spread(scheme.program, every)[at] if drift else scheme.program
    skip = run.run(work, state[group["params"][0]], program, Numbers.of(group, h, owed), skip)
    cycle_ends = at == every - 1 or not drift
    if at == 0 or cycle_ends:
        group["owed"] = run.owed_next(owed, h if scheme.tail and cycle_ends else 0.0, skip)
    return skip
