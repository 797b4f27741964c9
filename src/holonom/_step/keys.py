"""The names that a group and a constructor know, and the nearest one for a name that they do not."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

_GROUP = {"params", "constraint", "name", "param_names"}
_INTERNAL = {"step", "owed", "format", "starts_owing", "seed_given", "momentum"}  # momentum: see sgd.take_terms
_SCHEDULERS = {
    "initial_lr",
    "max_lr",
    "min_lr",
    "max_momentum",
    "base_momentum",
    "swa_lr",
}  # of torch's schedulers
_CLOCK = {"clock", "resting"}  # those of optimizers with periods
_ADVICE = {
    "nesterov": "momentum is SGD's plain one (Langevin.like_sgd(params, lr, momentum)); leave it out",
    "dampening": "momentum is SGD's plain one (Langevin.like_sgd(params, lr, momentum)); leave it out",
    "momentum": "give friction (momentum is e^(−friction·lr)), or build by Langevin.like_sgd(params, lr, momentum)",
    "every": "periods are those of holonom.multirate.MultirateLangevin",
    "drift": "periods are those of holonom.multirate.MultirateLangevin",
}


def check_keys(group: Mapping[str, Any], defaults: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise for a key that the new group's optimizer would never read; what another of its groups has may come in."""
    known = {*defaults, *_GROUP, *_INTERNAL, *_SCHEDULERS, *(key for other in groups for key in other)}
    known |= _CLOCK if "every" in defaults or "probability" in defaults else set()
    unknown = [key for key in group if key not in known]
    if unknown:
        hidden = _INTERNAL | _SCHEDULERS | _CLOCK
        _refuse(f"group {len(groups)} has the unknown key", unknown[0], known - hidden)


def refuse_options(options: Iterable[str], build: Any) -> None:
    """Raise for keywords that ``build`` does not take, if there are any.

    Presets and subclasses pass their options on, so the arguments of the calling functions of holonom count as known.
    """
    unknown = next(iter(options), None)
    if unknown is None:
        return
    known = {name for name, p in inspect.signature(build).parameters.items() if p.kind is not p.VAR_KEYWORD}
    frame, package = inspect.currentframe(), __name__.split(".")[0] + "."
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(package):
        code = frame.f_code
        if code.co_name == "__init__" or not code.co_name.startswith("_"):
            known |= set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        frame = frame.f_back
    _refuse("unknown option", unknown, known - {"self", "cls", "options", "build", unknown})


def _refuse(what: str, name: str, known: Iterable[str]) -> NoReturn:
    names = sorted(set(known))
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    if name in _ADVICE:
        advice = _ADVICE[name]
    elif near:
        advice = f"did you mean {near[0]!r}?"
    else:
        advice = f"there are {', '.join(names)}"
    raise TypeError(f"{what} {name!r}: {advice}")
