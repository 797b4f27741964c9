"""Hyperparameters: what a group may hold, and messages for what it may not."""

from __future__ import annotations

import math
import sys
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._random.seeds import checked, refuse_ranks
from ..constraints import Free
from ..constraints.base import Constraint
from ..ensemble.known import ensemble_of, warn_averaged
from ..errors import SchemeError
from ..scheme import OVERDAMPED, compile_word
from . import cautions, sgd, thermostat
from .letters import NUMBERS, plain
from .rates import Rates

# name → (symbol, whether infinity is allowed)
_NOT_NEGATIVE = {
    "lr": ("h", False),
    "friction": ("γ", True),
    "temperature": ("τ", False),
    "coupling": ("ε", False),
    "driving_noise": ("σ_A", False),
    "weight_decay": ("λ", False),
    "thermostat_time": ("t", False),
    "thermostat_friction": ("γ", False),
}
_MAY_BE_NONE = {"coupling", "driving_noise", "thermostat_time", "thermostat_friction"}  # then derived
SETTINGS = (*_NOT_NEGATIVE, "constraint", "scheme", "seed", "maximize")
settings = itemgetter(*SETTINGS)
"""What a scheduler or an assignment may change of a group, besides the ``momentum`` of one in SGD's terms."""
_LARGEST = {name: math.inf if infinite else sys.float_info.max for name, (_, infinite) in _NOT_NEGATIVE.items()}


def as_plain(options: dict[str, Any]) -> dict[str, Any]:
    """NumPy's numbers as Python's, which a checkpoint may hold; tensors of whole numbers as tensors of fractions."""
    seed = {} if isinstance(options.get("seed"), (Tensor, type(None))) else {"seed": checked(options["seed"])}
    found = {name: x.item() for name, x in options.items() if is_numpys(x)}
    for name in (*_NOT_NEGATIVE, "momentum"):
        x = options.get(name)
        if isinstance(x, Tensor) and not x.is_floating_point() and x.dtype != torch.bool and not x.is_complex():
            found[name] = x.to(torch.get_default_dtype())  # schedulers write fractions into it
    return {**options, **seed, **found}


def is_numpys(x: Any) -> bool:
    """Whether this is one number of NumPy's, such as schedules computed with it assign."""
    return isinstance(x, np.generic) or (isinstance(x, np.ndarray) and not x.ndim)


def is_number(x: Any) -> bool:
    if isinstance(x, Tensor):
        return x.is_floating_point()
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def to_parameters(group: dict[str, Any]) -> None:
    """Move numbers of shape (R,), and what is owed, to the parameters: letters compute with them and ξ, which is there.

    A number that the host has, in a tensor or not, stays there.
    """
    for name in (*NUMBERS, "owed") if group["params"] else ():
        x = group.get(name)
        if isinstance(x, Tensor) and (x.numel() != 1 or name == "owed"):
            group[name] = x.to(group["params"][0].device)
    group["lr"] = Rates.of(group["lr"])


def _unset(group: dict[str, Any]) -> str | None:
    """The number that a group in SGD's terms does not have."""
    return None if group.get("momentum") is None else "friction"


def check_now(group: dict[str, Any], number: int) -> None:
    """Raise for what schedulers or assignments have made of a group since it was checked."""
    group.update(as_plain({name: group[name] for name in (*_NOT_NEGATIVE, "momentum", "seed") if name in group}))
    for name, largest in _LARGEST.items():
        if name == _unset(group) or (group[name] is None and name in _MAY_BE_NONE):
            continue
        if group[name] is None:
            instead = ", or a group in SGD's terms (Langevin.like_sgd) its momentum" if name == "friction" else ""
            raise ValueError(f"{name} of group {number} is None; it needs a number{instead}")
        symbol = _NOT_NEGATIVE[name][0]
        if not is_number(group[name]):
            raise TypeError(f"{name} ({symbol}) of group {number} must be a number or a tensor, got {group[name]!r}")
        value = plain(group[name])
        if type(value) is float and not 0.0 <= value <= largest:
            raise ValueError(f"{name} ({symbol}) of group {number} is {value}: a scheduler or an assignment set it so")
    _check_flags(group)
    thermostat.check_time(group)
    check_seed(group["seed"])
    check_replicas(group)
    to_parameters(group)
    warn_averaged(group)
    if type(group["constraint"]) is not str:
        raise TypeError(
            f"param_groups[{number}]['constraint'] says what the constraint is; it cannot be assigned. Build a new "
            f"optimizer from the weights"
        )
    check_shared_seed(group, f"group {number}")
    _check_damping(group)


def _check_flags(group: dict[str, Any]) -> None:
    for name in ("maximize", "fuse", "foreach"):
        if not isinstance(group[name], bool) and (group[name] is not None or name == "maximize"):
            raise TypeError(f"{name} must be True or False{', or None' * (name != 'maximize')}, got {group[name]!r}")


def _check_damping(group: dict[str, Any]) -> None:
    if group.get("momentum") is not None:
        sgd.check(group)
    cautions.refuse_lost_kick(group)


def check_group(group: dict[str, Any], space: Constraint) -> None:
    """Raise with the name, the symbol and the value of whatever is wrong."""
    if not space.has_dynamics:
        raise ValueError(
            f"{space!r} has no dynamics: the set it bounds has edges. Give an optimizer of torch's to "
            f"holonom.constrain(optimizer, model, {{selector: {space!r}}}, update='plain'); in Langevin, "
            f"Orthogonal(scale=c) holds all singular values at c, and Sphere(c, per='block') bounds the Frobenius norm"
        )
    for name, (symbol, infinite) in _NOT_NEGATIVE.items():
        value = group[name]
        if name == _unset(group) or (value is None and name in _MAY_BE_NONE):
            continue
        if not is_number(value):
            raise TypeError(f"{name} ({symbol}) must be a number or a tensor, got {value!r}")
        if isinstance(value, Tensor) and value.device.type != "cpu":
            continue  # reading it would stall the device; a NaN shows in the next check()
        values = value.flatten().tolist() if isinstance(value, Tensor) else [float(value)]
        for x in values:
            if math.isnan(x) or x < 0 or (math.isinf(x) and not infinite):
                bound = "at least 0" if infinite else "finite and at least 0"
                raise ValueError(f"{name} ({symbol}) must be {bound}, got {x}")
    _check_flags(group)
    if not isinstance(group["scheme"], str):
        raise SchemeError(f"scheme must be a word such as 'BAOAB', got {group['scheme']!r}")
    scheme = compile_word(group["scheme"])
    thermostat.check(group)
    _check_damping(group)
    check_seed(group["seed"])
    if scheme.word == "M" and not isinstance(space, Free):
        raise ValueError(
            f"scheme 'M' averages the noise of two steps, which on {space!r} lies in two tangent spaces; "
            f"use scheme='BAOAB' with friction=float('inf'), the same method with projected momenta"
        )
    check_shared_seed(group, "a group with noise")


def check_shared_seed(group: dict[str, Any], name: str) -> None:
    """Raise if the group draws noise and every rank of torch.distributed would draw its own."""
    if not group.get("seed_given", True) and draws_noise(group):
        refuse_ranks(f"{name} (scheme {group['scheme']!r})")


def draws_noise(group: dict[str, Any]) -> bool:
    noise = {"temperature": OVERDAMPED | {"O"}, "driving_noise": {"D", "F"}}
    return any(letters & set(group["scheme"]) and not _is_zero(group[size]) for size, letters in noise.items())


def _is_zero(value: Any) -> bool:
    """A tensor is not read, so it counts as noise."""
    return isinstance(value, (int, float)) and value == 0


def check_seed(seed: Any) -> None:
    """Raise for what is no seed."""
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.ndim > 1:
            raise TypeError(
                f"a tensor seed is one int64 or (R,) of them, one per replica; got {seed.dtype} of shape "
                f"{tuple(seed.shape)}"
            )
    else:
        checked(seed)


def check_replicas(group: dict[str, Any]) -> None:
    """Seeds and numbers of shape (R,) need parameters of shape (R, …)."""
    seed, params = group["seed"], group["params"]
    if isinstance(seed, Tensor) and seed.ndim:
        for p in params:
            if p.shape[:1] != seed.shape:
                raise ValueError(
                    f"{len(seed)} seeds need parameters of shape ({len(seed)}, …), one slice a replica; "
                    f"got {tuple(p.shape)}. One model takes one seed."
                )
    for name, (symbol, _) in {**_NOT_NEGATIVE, "momentum": ("μ", False)}.items():
        x = group.get(name)
        if isinstance(x, Tensor) and x.numel() != 1 and any(p.shape[: x.ndim] != x.shape for p in params):
            raise ValueError(f"{_of_shape(name, symbol, x)}; {_wanted(group)}")


def _of_shape(name: str, symbol: str, x: Tensor) -> str:
    """torch's own tests of optimizers look for the words about lr."""
    if name == "lr":
        return f"Tensor lr must be 1-element, or have one element a replica; got {tuple(x.shape)}"
    return f"{name} ({symbol}) of shape {tuple(x.shape)} must be one number, or have one value a replica"


def _wanted(group: dict[str, Any]) -> str:
    """How long a number of a group may be: R where its seeds or an ensemble say what R is."""
    seed, shapes = group["seed"], {tuple(p.shape[:1]) for p in group["params"]}
    if (isinstance(seed, Tensor) and seed.ndim) or ensemble_of(group["params"]) is not None:
        count = len(seed) if isinstance(seed, Tensor) and seed.ndim else next(iter(shapes))[0]
        return f"there are {count} replicas: give one number, or a tensor of shape ({count},)"
    return "these parameters are not those of replicas, whose first dimension would have this length: give one number"


def summary(group: dict[str, Any]) -> str:
    """The hyperparameters that the group's word reads, in one line."""
    word = group["scheme"]
    shown = ["lr"]
    if set(word) & (set("OE") | OVERDAMPED):
        shown.append("temperature")
    if "O" in word:
        shown.append("friction" if group.get("momentum") is None else "momentum")
    if "E" in word:
        shown.append("thermostat_time" if group["coupling"] is None else "coupling")
    if set(word) & set("DF"):
        shown.append("thermostat_friction" if group["driving_noise"] is None else "driving_noise")
    if isinstance(group["weight_decay"], Tensor) or group["weight_decay"]:
        shown.append("weight_decay")
    values = {**group, "thermostat_friction": thermostat.friction(group)} if "thermostat_friction" in shown else group
    return ", ".join(f"{name}={_short(values[name])}" for name in shown)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return (
            f"{value.item():g}" if value.numel() == 1 and value.device.type == "cpu" else f"tensor{tuple(value.shape)}"
        )
    return "None" if value is None else f"{value:g}"
