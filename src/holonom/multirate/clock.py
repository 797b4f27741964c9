"""Time scales: groups with periods that divide each other, on one clock."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .._step.checkpoint import ADDED
from .._step.state import check_params
from ..errors import CheckpointError, PartitionError
from .due import DueOptimizer, RateError

Group = dict[str, Any]


class Clock(DueOptimizer):
    """Groups that take their gradient every ``every`` steps, and drift or rest in between.

    All groups share one count of steps (``group["clock"]``); a group is due when its period divides
    it. Inside ``due()`` the parameters of all other groups have ``requires_grad=False``, so that
    autograd neither keeps a graph for them nor computes their gradients. A parameter that had no
    gradient at its turn rests until the next one (``group["resting"]`` holds its number).

    Subclasses say how groups move (:meth:`_move`).
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        super().__init__(params, {"every": 1, "drift": True, **defaults})
        fastest = min(group["every"] for group in self.param_groups)
        if fastest > 1:
            raise ValueError(
                f"no group has every=1: on {fastest - 1} of {fastest} steps nothing would be due. Divide all periods "
                f"by {fastest} and multiply the rates by it"
            )

    @abstractmethod
    def _move(self, groups: list[Group]) -> None:
        """One step of these groups."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not isinstance(param_group, dict):
            raise TypeError(f"a parameter group must be a dict, got {type(param_group).__name__}")
        number = len(self.param_groups)
        every = param_group.setdefault("every", self.defaults["every"])
        check_period(every, [group["every"] for group in self.param_groups])
        given = param_group["params"]
        if isinstance(given, set):
            raise TypeError("parameters need an order; give a list instead of a set")
        given = param_group["params"] = [given] if isinstance(given, Tensor) else list(given)
        if not given:
            raise ValueError(f"group {number} has no parameters (a generator gives its parameters only once)")
        known = {id(p) for group in self.param_groups for p in group["params"]}
        check_params([x[1] if isinstance(x, tuple) else x for x in given], known)
        super().add_param_group(param_group)
        param_group["clock"] = self.param_groups[0]["clock"] if number else 0
        # A group that joins in mid-cycle has no gradient to drift by: it rests until its turn.
        param_group["resting"] = [] if is_due(param_group) else list(range(len(given)))

    def _prepare(self) -> AbstractContextManager[None]:
        return differentiating(self._due(), self.param_groups)

    def _due(self) -> list[Group]:
        return [group for group in self.param_groups if is_due(group)]

    def _advance(self, closure: Callable[[], Any] | None) -> None:
        due = self._due()
        for group in due:
            self._require_gradients(group)
        waiting = list(self.param_groups)
        # Algorithm 5.2 moves a slow group first and takes the faster ones' gradients where it arrived.
        for every in sorted({group["every"] for group in due if leaps_now(group)}, reverse=True):
            if closure is None:
                break
            leaping = [group for group in waiting if group["every"] == every and leaps_now(group)]
            waiting = [group for group in waiting if not any(group is other for other in leaping)]
            self._move(leaping)
            self._take_again(closure, [group for group in due if group["every"] < every])
        self._move(waiting)
        for group in self.param_groups:
            group["clock"] += 1

    def _take_again(self, closure: Callable[[], Any], groups: list[Group]) -> None:
        """New gradients for some groups; those of the others are kept from a closure that clears them."""
        again = {id(p) for group in groups for p in group["params"]}
        kept = [(p, p.grad) for group in self.param_groups for p in group["params"] if id(p) not in again]
        self.zero_grad()
        with self._block(differentiating(groups, self.param_groups)), torch.enable_grad():
            closure()
        for p, gradient in kept:
            p.grad = gradient
        for group in groups:
            self._require_gradients(group)

    def _require_gradients(self, group: Group) -> None:
        params = group["params"]
        if any(p.grad is not None for p in params) or not any(p.requires_grad for p in params):
            return
        number = next(i for i, other in enumerate(self.param_groups) if other is group)
        raise RateError(
            f"group {number} (every={group['every']}) is due at step {group['clock']}, but none of its "
            f"{len(params)} parameters has a gradient. Call backward() inside due(), on a loss that depends on them; "
            f"to rest a group, set requires_grad=False on its parameters"
        )

    def _moving(self, group: Group) -> list[Tensor]:
        """The parameters that move at this step: at its turn those with a gradient, later the same, if they drift."""
        params: list[Tensor] = group["params"]
        if is_due(group):
            group["resting"] = [i for i, p in enumerate(params) if p.grad is None]
            return [p for p in params if p.grad is not None]
        if not group["drift"]:
            return []
        resting = set(group["resting"])
        return [p for i, p in enumerate(params) if p.requires_grad and i not in resting]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a checkpoint, in mid-cycle if it was made there; periods are the checkpoint's."""
        check = self.register_load_state_dict_pre_hook(check_rates)  # after the user's, which may mend a checkpoint
        try:
            super().load_state_dict(state_dict)
        finally:
            check.remove()


def is_due(group: Group) -> bool:
    return bool(group["clock"] % group["every"] == 0)


def leaps_now(group: Group) -> bool:
    """Whether the group makes the whole of a slow step at this one."""
    return is_due(group) and group["every"] > 1 and not group["drift"]


@contextmanager
def differentiating(groups: list[Group], everyone: list[Group]) -> Iterator[None]:
    """Set ``requires_grad=False`` on all parameters but those of ``groups``; put back what was there."""
    chosen = {id(group) for group in groups}
    frozen = [p for group in everyone if id(group) not in chosen for p in group["params"] if p.requires_grad]
    for p in frozen:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in frozen:
            p.requires_grad_(True)


def check_period(every: Any, others: list[int]) -> None:
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every must be a whole number of steps, at least 1; got {every!r}")
    for other in others:
        if every % other and other % every:
            raise ValueError(
                f"periods {other} and {every} do not divide each other: time scales are nested, each a whole number "
                f"of steps of the next faster one (thesis 5.3.1), as in 1, 2, 6"
            )


def check_rates(optimizer: Any, saved: dict[str, Any]) -> None:
    """Whether a checkpoint has a clock, and the state of this kind of optimizer."""
    for number, group in enumerate(saved.get("param_groups", [{}])):
        missing = sorted({"every", "drift", "clock", "resting"} - set(group))
        if missing:
            raise CheckpointError(
                f"group {number} of the checkpoint has no {', '.join(missing)}: no multirate optimizer wrote it"
            )
    params = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in saved.get("param_groups", []) for number in group["params"]]
    for p, number in zip(params, numbers, strict=False):
        missing = sorted(set(optimizer.state.get(p, {})) - set(saved.get("state", {}).get(number, {})) - ADDED)
        if missing:
            raise CheckpointError(
                f"the checkpoint has no {', '.join(missing)} of parameter {number}: another kind of multirate "
                f"optimizer than {type(optimizer).__name__} wrote it"
            )


def check_number(name: str, value: Any) -> None:
    """A number that is finite and not negative, or a tensor, which is not read."""
    if isinstance(value, Tensor):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number or a tensor, got {value!r}")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be finite and at least 0, got {value}")


def check_covered(model: nn.Module | None, groups: list[Group]) -> None:
    """Every trainable parameter of the model must be in a group."""
    known = {id(p) for group in groups for p in group["params"]}
    named = model.named_parameters() if model is not None else ()
    missed = [name for name, p in named if p.requires_grad and id(p) not in known]
    if missed:
        shown = ", ".join(map(repr, missed[:8])) + (f" and {len(missed) - 8} more" if len(missed) > 8 else "")
        raise PartitionError(
            f"no group has {shown}: they would never move, and autograd would keep the graph above them at every step. "
            f"Add them to a group, or set requires_grad=False"
        )
