"""Parameter groups: checking a new one, landing its parameters and creating their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._random import seeds
from .._sharding.agreement import agree_on, agree_on_order, refuse_groups, refuse_placements, sharded
from ..constraints import Constraint, Free
from ..ensemble.known import replica_dims
from . import cautions, edits, hyper, keys, sgd, thermostat
from . import state as states


class Grouped(Optimizer):
    """Methods that add groups to an optimizer, by torch's rules."""

    _default_space: Constraint | None
    _spaces: dict[Tensor, Constraint]
    _landings: states.Landings | None
    _landed: dict[Tensor, states.Landed]
    _kinds: dict[Tensor, edits.Kind]
    _said: set[str]
    _note: Callable[..., None]

    @torch.no_grad()
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        if "params" not in param_group:
            raise ValueError(
                f"group {len(self.param_groups)} has no 'params': it has {', '.join(param_group) or 'none'}"
            )
        given = param_group["params"]
        if isinstance(given, Iterator):
            given = list(given)  # it would be empty the second time
            param_group = {**param_group, "params": given}
        found = sharded(given)
        if not found:
            group, space = self._new_group(param_group)
        else:
            problem, space = None, Free()
            try:
                refuse_placements(found)
                group, space = self._new_group(param_group)
                refuse_groups({**self.defaults, **group}, space)
            except Exception as error:
                problem = error
            settings = {} if problem else {**self.defaults, **group}
            agree_on(problem, settings, space, given, found)
        params, known = group["params"], {id(p) for other in self.param_groups for p in other["params"]}
        super().add_param_group(group)
        group = self.param_groups[-1]
        thermostat.complete(group)
        group |= {"constraint": repr(space), "step": 0, "owed": None, "format": states.FORMAT}
        try:
            hyper.check_replicas(group)
            hyper.to_parameters(group)
            space = space.over_replicas(replica_dims(group["params"], group["seed"]))
            names = states.names_of(group, len(known))
            landings = states.create(group, space, group["params"], names, self.state, self._landed)
            if group["params"]:
                states.create_shared(group, self.state)
            if self._landings is None:  # the constructor does so when it has all groups
                agree_on_order(self.param_groups)
        except Exception:
            params = self.param_groups.pop()["params"]
            states.unland_(self._landed, params)
            for p in params:
                self.state.pop(p, None)
            raise
        self._spaces |= dict.fromkeys(group["params"], space)
        self._note(group["params"], kinds=True)
        if self._landings is None:
            states.warn_landed(landings)
            cautions.warn_once({len(self.param_groups) - 1: group}, self._said)
        else:
            self._landings += landings

    def _new_group(self, param_group: dict[str, Any]) -> tuple[dict[str, Any], Constraint]:
        """A new group and its space, both as this optimizer keeps them; raises for what they may not be."""
        group = seeds.noted(hyper.as_plain(sgd.take_terms(param_group, self.defaults)))
        keys.check_keys(group, self.defaults, self.param_groups)
        space = group.pop("constraint", self._default_space) or Free()
        if not isinstance(space, Constraint):
            raise TypeError(f"constraint must be a holonom.constraints object or None, got {space!r}")
        space = space.with_view(None)  # parameters without a module are read as they are
        hyper.check_group({**self.defaults, **group}, space)
        if isinstance(group["params"], set):
            raise TypeError("optimizer parameters need to be organized in ordered collections: give a list, not a set")
        group["params"] = states.without_duplicates(group["params"])
        known = {id(p) for other in self.param_groups for p in other["params"]}
        states.check_params([x[1] if isinstance(x, tuple) else x for x in group["params"]], known)
        return group, space

    def _adopt(self, number: int, group: dict[str, Any]) -> None:
        """Complete a group that was put into ``param_groups`` without :meth:`add_param_group`, as some libraries do."""
        unknown = [p for p in group["params"] if p not in self._spaces]
        if unknown and len(unknown) == len(group["params"]):
            behind = self.param_groups[number:]
            del self.param_groups[number:]
            for p in unknown:
                self.state.pop(p, None)
            try:
                self.add_param_group({**group, "constraint": states.space_named(group.get("constraint"), self._spaces)})
                behind = behind[1:]
            finally:
                self.param_groups += behind
        elif group["params"]:
            space = states.space_of(group, number, self._spaces)
            missing = {"constraint": repr(space), "step": 0, "owed": None, "format": states.FORMAT}
            for name, value in {**self.defaults, **seeds.noted(group), **missing}.items():
                group.setdefault(name, value)
            thermostat.complete(group)
            if unknown:  # parameters that were appended to a group
                names = [f"an added parameter of shape {tuple(p.shape)}" for p in unknown]
                states.warn_landed(states.create(group, space, unknown, names, self.state, self._landed))
                self._spaces |= dict.fromkeys(unknown, space)
            states.settle_shared(group, self.state)
            self._note([p for p in group["params"] if p not in self._kinds], kinds=True)
