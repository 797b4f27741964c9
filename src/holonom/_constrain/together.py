"""Several optimizers as one, because trainers, schedulers and scalers take one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._lines import users_line
from .._random.seeds import numbers
from .._step.hyper import draws_noise
from .._torch import step_hooks
from ..errors import CheckpointError
from .saved import KEY, check, merged, out_of_groups


class _States(MutableMapping[Tensor, Any]):
    """The parts' states as one mapping; what is written goes to the part that owns the parameter."""

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts

    def _of(self, p: Tensor) -> Any:
        for part in self.parts:
            if any(p is own for group in part.param_groups for own in group["params"]):
                return part.state
        raise KeyError(p)

    def __getitem__(self, p: Tensor) -> Any:
        return self._of(p)[p]

    def __setitem__(self, p: Tensor, value: Any) -> None:
        self._of(p)[p] = value

    def __delitem__(self, p: Tensor) -> None:
        del self._of(p)[p]

    def __iter__(self) -> Iterator[Tensor]:
        return (p for part in self.parts for p in part.state)

    def __len__(self) -> int:
        return sum(len(part.state) for part in self.parts)


class Together(Optimizer):
    """What :func:`holonom.together` returns; ``optimizers`` are its parts."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.optimizers = optimizers
        super().__init__([{"params": group["params"]} for part in optimizers for group in part.param_groups], {})
        first, *others = (part.defaults for part in optimizers)
        self.defaults = {k: v for k, v in first.items() if all(k in d and d[k] is v for d in others)}

    @property  # type: ignore[override]
    def param_groups(self) -> list[dict[str, Any]]:
        """The parts' own groups, so that a scheduler's rate is theirs at once."""
        return [group for part in self.optimizers for group in part.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        if groups:
            raise AttributeError("param_groups belong to the parts: set theirs, .optimizers[i].param_groups")

    @property  # type: ignore[override]
    def state(self) -> MutableMapping[Tensor, Any]:
        return _States(self.optimizers)

    @state.setter
    def state(self, state: Any) -> None:
        if state:
            raise AttributeError("state belongs to the parts: set theirs, .optimizers[i].state")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        own = param_group["params"]
        if not any(own is group["params"] for group in self.param_groups):
            raise TypeError("which part a new group belongs to is not known: .optimizers[i].add_param_group(group)")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """A step of every part; the closure, if there is one, is called once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.optimizers:
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.optimizers:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """In torch's flat form: parameters are numbered through all parts, groups follow each other."""
        for pre in self._optimizer_state_dict_pre_hooks.values():
            pre(self)
        found: dict[str, Any] = {"state": {}, "param_groups": []}
        first = 0
        for part in self.optimizers:
            own = part.state_dict()
            found["state"] |= {first + i if isinstance(i, int) else i: x for i, x in own["state"].items()}
            found["param_groups"] += [{**g, "params": [first + i for i in g["params"]]} for g in own["param_groups"]]
            if KEY in own:
                found[KEY] = merged(found.get(KEY), own[KEY])
            first += sum(len(group["params"]) for group in part.param_groups)
        for post in self._optimizer_state_dict_post_hooks.values():
            found = post(self, found) or found
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state_dict = dict(state_dict)
        for pre in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = pre(self, state_dict) or state_dict
        groups = state_dict["param_groups"]
        wanted, found = ([len(group["params"]) for group in own] for own in (self.param_groups, groups))
        if wanted != found:
            raise CheckpointError(f"the checkpoint's groups hold {found} parameters, these optimizers' {wanted}")
        self._check_handles(state_dict)
        for part in self.optimizers:
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            numbers = {i: n for n, i in enumerate(i for group in own for i in group["params"])}
            part.load_state_dict(
                {
                    **{key: x for key, x in state_dict.items() if key == KEY},
                    "state": {numbers[i]: x for i, x in state_dict["state"].items() if i in numbers},
                    "param_groups": [{**g, "params": [numbers[i] for i in g["params"]]} for g in own],
                }
            )
        for post in self._optimizer_load_state_dict_post_hooks.values():
            post(self)

    def _check_handles(self, state_dict: dict[str, Any]) -> None:
        """Raise for what the handle of a part would refuse, before another part is loaded."""
        state = out_of_groups(state_dict).get(KEY)
        for hook in (hook for part in with_parts(self) for hook in step_hooks(part)):
            claims = getattr(getattr(hook, "__self__", None), "_claims", ())
            if claims and state is not None:
                check(claims, state)

    def __repr__(self) -> str:
        return "Together (\n" + "\n".join(repr(part) for part in self.optimizers) + "\n)"

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "optimizers": self.optimizers}


def with_parts(optimizer: Optimizer) -> list[Optimizer]:
    """An optimizer, the parts it steps, and theirs."""
    parts = getattr(optimizer, "optimizers", ())
    return [optimizer, *(own for part in parts for own in with_parts(part))]


def together(*optimizers: Optimizer) -> Together:
    """One optimizer of several: Muon for the matrices and AdamW for the rest, say.

    >>> opt = holonom.together(torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=1e-3))

    It has one ``step``, ``zero_grad`` and ``state_dict``, in torch's flat form. ``param_groups`` are the parts' own, so
    that schedulers, a ``GradScaler`` and trainers work as on any optimizer.
    """
    seen: dict[int, int] = {}
    if len(optimizers) < 2:
        raise TypeError(f"together takes two optimizers or more, got {len(optimizers)}")
    for number, part in enumerate(optimizers):
        if not isinstance(part, Optimizer):
            raise TypeError(f"together takes torch.optim optimizers, got {type(part).__name__} at place {number}")
        if isinstance(part, torch.optim.LBFGS):
            raise TypeError("LBFGS evaluates the loss several times in a step, which the others do not: step it alone")
        for p in (p for group in part.param_groups for p in group["params"]):
            if seen.setdefault(id(p), number) != number:
                raise ValueError(
                    f"optimizers {seen[id(p)]} and {number} both hold a parameter of shape {tuple(p.shape)}: give each "
                    f"parameter to one"
                )
    _warn_shared_noise(optimizers)
    return Together(list(optimizers))


def _warn_shared_noise(optimizers: tuple[Optimizer, ...]) -> None:
    """Every optimizer numbers its own parameters from 0, so that those of one seed draw the same numbers."""
    holders: dict[int, tuple[str, int]] = {}
    for number, part in enumerate(optimizers):
        for group in part.param_groups:
            if "seed" not in group or ("scheme" in group and not draws_noise(group)):
                continue
            found = numbers(group["seed"])
            for seed in found if isinstance(found, tuple) else (found,):
                kind, first = holders.setdefault(seed, (type(part).__name__, number))
                if first != number:
                    warnings.warn(
                        f"optimizers {first} ({kind}) and {number} ({type(part).__name__}) have the same seed, {seed}: "
                        f"their parameters draw the same random numbers. Give them different seeds, or none, and each "
                        f"draws its own",
                        stacklevel=users_line(),
                    )
                    return
