"""Checkpoints: whether one is of an optimizer like this, and its state in the precision it was saved in."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._lines import users_line
from .._random import seeds
from .._sharding.shards import is_sharded, local, piece_of, whole
from .._sharding.state import replaced
from ..constraints.base import MOMENTA, Constraint
from ..errors import CheckpointError
from . import sgd
from .buckets import Bucket, State, state_dtype
from .configurational import REFERENCE, SUMS
from .edits import agrees
from .hyper import as_plain, check_replicas, check_seed, is_numpys, to_parameters
from .joint import bucket_of, units
from .order import in_order_of
from .rates import Rates
from .state import FORMAT, Landed

if TYPE_CHECKING:
    from .._sharding.ranks import Ranks

ADDED = {"stream", "clock", REFERENCE, SUMS}  # state that is not always written
_MUST_AGREE = {
    "constraint": "build the optimizer with the checkpoint's constraint; to change it, start from the weights alone",
    "scheme": "build the optimizer with the checkpoint's scheme; to change it, start from the weights alone",
}


class Checkpointed(Optimizer):
    """Methods that copy, save and restore an optimizer, by torch's rules."""

    _spaces: dict[Tensor, Constraint]
    _landed: dict[Tensor, Landed]
    _buckets: Callable[[], list[list[Bucket]]]
    _reset_caches: Callable[[], None]
    _warn_skipped: Callable[[], None]
    _ranks: Ranks | None

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint. Nothing is moved: weights that were edited since the last step are taken up by the next one,
        here as in the run that is resumed."""
        self._buckets()  # complete groups that a library put into param_groups
        self._settle()
        self._warn_skipped()
        for group in self.param_groups:  # schedulers may have written to them after the last step
            group.update({name: x.item() for name, x in group.items() if is_numpys(x)})
        held = {id(p) for group in self.param_groups for p in group["params"]}
        # torch has no number for a parameter whose group was removed from the list.
        removed = {p: self.state.pop(p) for p in list(self.state) if isinstance(p, Tensor) and id(p) not in held}
        try:
            return super().state_dict()
        finally:
            self.state.update(removed)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a checkpoint; constraints and schemes must be those it was made with.

        A seed that was given to this optimizer or to one of its groups stays, with a warning if the checkpoint's
        differs; otherwise the checkpoint's is restored and the run continues as if it had not stopped. Where both
        sides have names (``named_parameters()``), they say which parameter is which; otherwise the order does.
        """
        self._buckets()
        loaded: dict[str, Any] = {}
        warning: list[str | None] = []
        before, landed = [dict(group) for group in self.param_groups], dict(self._landed)
        states = {p: dict(own) for p, own in self.state.items()}

        def before_load(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
            saved = in_order_of(self.param_groups, self.state, saved)
            check(self.param_groups, self.state, saved)
            loaded.update(saved)
            return saved

        def after_load(_: Optimizer) -> None:
            restore(self.param_groups, before, self.state, states, loaded)
            for p, space in self._spaces.items():
                if is_sharded(p) and p in self.state:
                    replaced(space, p, self.state[p])
            warning.append(seeds.keep_given(self.param_groups, before, self.defaults))
            undo_landings(self.param_groups, self._spaces, self.state, landed)
            self._reset_caches()

        # As hooks: after those of the user that rewrite a checkpoint, before those that look at the result.
        first = self.register_load_state_dict_pre_hook(before_load)
        last = self.register_load_state_dict_post_hook(after_load, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            first.remove()
            last.remove()
        if warning[0]:
            warnings.warn(warning[0], stacklevel=users_line())

    @torch.no_grad()
    def reseed_(self, seed: int | Tensor) -> None:
        """Give all groups another seed: from the next step on, the noise of a run that had it from the start.

        Chains branch from one burn-in by it. A tensor of shape (R,) has one seed per replica, as at construction.
        """
        seed = as_plain({"seed": seed})["seed"]
        check_seed(seed)
        self._buckets()
        for group in self.param_groups:
            check_replicas({**group, "seed": seed})
            thermostat = self.state[group["params"][0]].get("thermostat") if group["params"] else None
            if isinstance(seed, Tensor) and thermostat is not None and seed.ndim > thermostat.ndim:
                raise ValueError(
                    f"{len(seed)} seeds need a thermostat for every replica, and this optimizer was built with one for "
                    f"all: give one number, or build it with seed=ensemble.seeds"
                )
        for group in self.param_groups:
            device = group["params"][0].device if group["params"] else None
            group["seed"] = seed.to(device) if isinstance(seed, Tensor) else seed
            group["seed_given"] = True
        self.defaults |= {"seed": seed, "seed_given": True}

    def _settle(self) -> None:
        """Write what owners of gathered parameters keep into the state: all ranks come here together."""
        if self._ranks is not None:
            self._ranks.settle()

    def __getstate__(self) -> dict[str, Any]:
        self._buckets()
        self._settle()
        names = ("_spaces", "_default_space", "_landings", "guard_gradients", "_said")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group["lr"] = Rates.of(group["lr"])  # pickled as a plain tensor
        self.defaults.pop("differentiable", None)  # torch adds it for its own optimizers; here it has no effect
        self._reset_caches()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return new


def check(groups: list[dict[str, Any]], state: dict[Tensor, State], saved: dict[str, Any]) -> None:
    """Raise :class:`CheckpointError` unless the checkpoint was made by an optimizer like this one."""
    saved_groups = saved.get("param_groups")
    if saved_groups is None or "state" not in saved:
        raise CheckpointError("this is not an optimizer checkpoint: it has no param_groups and state")
    if len(saved_groups) != len(groups):
        raise CheckpointError(
            f"the checkpoint has {len(saved_groups)} parameter group(s), this optimizer {len(groups)}"
        )
    for number, (group, other) in enumerate(zip(groups, saved_groups, strict=True)):
        if len(group["params"]) != len(other["params"]):
            raise CheckpointError(
                f"group {number}: the checkpoint has {len(other['params'])} parameters, this one {len(group['params'])}"
            )
        for key, advice in _MUST_AGREE.items():
            if key not in other:
                raise CheckpointError(f"group {number} of the checkpoint has no {key!r}: holonom did not write it")
            if other[key] != group[key]:
                raise CheckpointError(f"group {number}: checkpoint {key} {other[key]}, here {group[key]}; {advice}")
        if other.get("momentum") is not None and group.get("momentum") is None:
            raise CheckpointError(
                f"group {number} of the checkpoint has SGD's lr and momentum, here lr is a time step; build the "
                f"optimizer by Langevin.like_sgd"
            )
        if "every" in other and "every" not in group:
            raise CheckpointError(
                f"group {number} of the checkpoint takes its gradient every {other['every']} step(s), here there "
                f"are no such periods; build the optimizer by holonom.multirate.MultirateLangevin"
            )
        if other.get("format", 1) > FORMAT:
            raise CheckpointError(
                f"group {number} of the checkpoint has format {other['format']}, this version reads up to {FORMAT}: "
                f"a later version of holonom wrote it; upgrade to load it"
            )
        for p, index in zip(group["params"], other["params"], strict=True):
            wrong = _differences(state[p], saved["state"].get(index, {}))
            if len(wrong) == 2 and wrong < set(MOMENTA):
                raise CheckpointError(
                    f"group {number}: the checkpoint keeps the momentum of an orthogonal weight of shape "
                    f"{tuple(p.shape)} in other coordinates (an earlier version of holonom, or other iterations); "
                    f"start from the weights alone"
                )
            if wrong:
                raise CheckpointError(
                    f"group {number}: state {sorted(wrong)} of a parameter of shape {tuple(p.shape)} is missing or has "
                    f"another shape in the checkpoint; was it saved from another model?"
                )


def _differences(here: State, there: State) -> set[str]:
    """Names of state that one has and the other has not, or in another shape."""
    names = (here.keys() | there.keys()) - ADDED
    return {k for k in names if k not in here or k not in there or here[k].shape != there[k].shape}


def restore(
    groups: list[dict[str, Any]],
    before: list[dict[str, Any]],
    state: dict[Tensor, State],
    states: dict[Tensor, State],
    saved: Any,
) -> None:
    """Put the saved tensors back in the dtype this optimizer keeps its state in; add what 0.1.0 did not write.

    ``before`` and ``states`` are this optimizer's groups and state before it loaded anything.
    torch casts loaded state to the parameter's dtype, which would turn a half-precision model's
    float32 momenta and slack into half precision and break the constraint.
    """
    for group, own, other in zip(groups, before, saved["param_groups"], strict=True):
        for name, value in own.items():
            if name != "momentum":
                group.setdefault(name, value)
        if own.get("momentum") is not None and group.get("momentum") is None:
            group.update(sgd.converted(group, own["momentum"]))
        group["format"] = FORMAT
        to_parameters(group)
        for number, (p, index) in enumerate(zip(group["params"], other["params"], strict=True)):
            theirs = saved["state"].get(index, {})
            state[p] = {k: _as_kept(v, p, states[p].get(k)) for k, v in theirs.items()}
            state[p]["stream"] = torch.as_tensor(theirs["stream"]).cpu()
            if SUMS in theirs:
                state[p][SUMS] = theirs[SUMS].to(p.device, torch.float64, copy=True)
            if number == 0:
                if isinstance(group["seed"], Tensor):
                    group["seed"] = group["seed"].to(p.device)
                if "clock" not in state[p]:
                    state[p]["clock"] = torch.full((), group["step"], dtype=torch.int64, device=p.device)


def _as_kept(value: Any, p: Tensor, here: Any) -> Any:
    """A saved value in the precision and on the device of this optimizer's; whole if it is placed in another way."""
    if not isinstance(value, Tensor):
        return value
    if is_sharded(value) and not (isinstance(here, Tensor) and is_sharded(here) and piece_of(here) == piece_of(value)):
        value = whole(value)
    return value.to(p.device, state_dtype(p) if value.is_floating_point() else value.dtype, copy=True)


def undo_landings(
    groups: list[dict[str, Any]],
    spaces: dict[Tensor, Constraint],
    state: dict[Tensor, State],
    landed: dict[Tensor, Landed],
) -> None:
    """Undo the landing of weights that the checkpoint has as they came: the next step takes them up, if need be.

    A checkpoint made before the first step has them only if they agree with its state. Where the constructor took their
    norms for radii, which are now the checkpoint's, it landed them for nothing.
    """
    for group in groups:
        if not any(p in landed for p in group["params"]):
            continue
        space = spaces[group["params"][0]]
        for unit, names in units(space, group["params"], [""] * len(group["params"])):
            records = {p: landed[p] for p in unit if p in landed}
            if records and all(record.unchanged(p) for p, record in records.items()):
                for p, record in records.items():
                    local(p).detach().copy_(record.before)
                if group["step"] or space.takes_sizes:
                    continue
                own = [{name: whole(x) for name, x in state[p].items()} for p in unit]
                if not agrees(bucket_of(space, [whole(p) for p in unit], own, names)):
                    for p, record in records.items():
                        local(p).detach().copy_(record.after)
