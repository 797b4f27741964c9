"""Partitions: which parameters go to which group, by name, module type, role or place in the network.

A selector is a condition on a :class:`Place`: :data:`weights`, :data:`biases`, :data:`norms`, :data:`embeddings`,
:data:`positions`, :data:`first`, :data:`hidden`, :data:`output`, :func:`role`, :func:`named`, :func:`of_type`. They
compose by ``&``, ``|`` and ``~``. :data:`ROLES` says what each role means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from ._partition.methods import Groups, in_place, unique
from ._partition.places import Blocks, Place, Roles, locate, view_of
from ._partition.roles import ROLES
from ._partition.selectors import (
    Selector,
    as_selector,
    biases,
    embeddings,
    first,
    hidden,
    named,
    norms,
    of_type,
    output,
    positions,
    role,
    unmatched,
    warn_unmatched,
    weights,
)
from .errors import PartitionError

__all__ = [
    "ROLES",
    "Groups",
    "Place",
    "Selector",
    "biases",
    "embeddings",
    "first",
    "hidden",
    "locate",
    "named",
    "norms",
    "of_type",
    "output",
    "partition",
    "positions",
    "role",
    "view_of",
    "weights",
]

Rules = Mapping[Any, Mapping[str, Any]] | Iterable[tuple[Any, Mapping[str, Any]]]


def partition(
    model: nn.Module, rules: Rules, *, roles: Roles | None = None, blocks: Blocks | None = None, verbose: bool = True
) -> Groups:
    """Parameter groups from rules; every parameter must be claimed exactly once.

    A rule's key is a selector such as ``weights & hidden`` or ``role("attention")``, a name pattern
    (``"encoder.*.weight"``), a module type (``nn.Linear``), a function of a :class:`Place`, a tuple of these (any of
    them), or ``"rest"`` for what no other rule claims. Its value holds the group's options.

    >>> groups = partition(model, {weights & hidden: {"constraint": Orthogonal()}, "rest": {}})

    Groups come in the order of the rules and are called by their keys. A constraint whose view is "auto" reads every
    parameter by its module (:func:`view_of`); parameters of one rule that are read differently become several groups.

    Args:
        model: the network.
        rules: a mapping, or pairs, from selectors to options.
        roles: name patterns and the roles of what they match, before all rules: ``{"mixer.*": "attention"}``.
        blocks: name patterns and how many matrices are packed along the outputs of what they match.
        verbose: print what went where.
    """
    places = locate(model, roles, blocks)
    pairs = _pairs(rules)
    claimed: dict[str, list[int]] = {place.name: [] for place in places}
    for number, (key, _) in enumerate(pairs):
        if not _is_rest(key):
            selector = as_selector(key)
            for place in places:
                if selector(place):
                    claimed[place.name].append(number)
    rest = [number for number, (key, _) in enumerate(pairs) if _is_rest(key)]
    if len(rest) > 1:
        raise PartitionError('"rest" is given twice; every parameter belongs to one group')
    for key, options in pairs:
        if "params" in options:
            raise PartitionError(f"rule {_label(key)} sets 'params'; which parameters it gets is what it claims")
    for numbers in claimed.values():
        if not numbers and rest:
            numbers.append(rest[0])
    _check(claimed, pairs, places, model)
    for key, _ in pairs:
        if not _is_rest(key):
            warn_unmatched(as_selector(key), places, model)

    groups: Groups = []
    for number, (key, options) in enumerate(pairs):
        own = [place for place in places if claimed[place.name] == [number]]
        groups += _by_view(own, {"name": _name(number, key), **options})
    for number, (group, name) in enumerate(zip(groups, unique([group["name"] for group in groups]), strict=True)):
        group["name"] = name
        if verbose:
            _show(number, group)
    return groups


def _pairs(rules: Rules) -> list[tuple[Any, Mapping[str, Any]]]:
    pairs = list(rules.items() if isinstance(rules, Mapping) else rules or ())
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Mapping):
            raise PartitionError(f"a rule is a selector and a dict of options, such as weights: {{}}; got {pair!r}")
    return pairs


def _by_view(places: list[Place], options: Mapping[str, Any]) -> Groups:
    """One group, or several where an automatic view reads parameters differently."""
    groups: dict[str, dict[str, Any]] = {}
    for place in places:
        space = in_place(options.get("constraint"), place)
        own = options if "constraint" not in options else {**options, "constraint": space}
        group = groups.setdefault(repr(space), {"params": [], **own})
        group["params"].append((place.name, place.parameter))
    return list(groups.values())


def _name(number: int, key: Any) -> str:
    label = "rest" if _is_rest(key) else _label(key)
    return f"rule {number}" if "<lambda>" in label else label


def _is_rest(key: Any) -> bool:
    return isinstance(key, str) and key == "rest"


def _check(claimed: dict[str, list[int]], pairs: list[tuple[Any, Any]], places: list[Place], model: nn.Module) -> None:
    busy = {n for numbers in claimed.values() for n in numbers}
    idle = [as_selector(s) for n, (s, _) in enumerate(pairs) if not _is_rest(s) and n not in busy]
    missed = [name for name, numbers in claimed.items() if not numbers]
    if missed and not idle:  # else what is missed may be what the idle rule was meant for
        raise PartitionError(f"no rule claims {_listing(missed)}; add a rule, or 'rest': {{}} for all others")
    twice = {name: numbers for name, numbers in claimed.items() if len(numbers) > 1}
    if twice:
        name, numbers = next(iter(twice.items()))
        rules = " and ".join(_label(pairs[n][0]) for n in numbers)
        raise PartitionError(
            f"{len(twice)} parameter(s) are claimed twice, {name!r} by {rules}; make the rules disjoint"
        )
    if idle:
        said = [text for selector in idle for text in unmatched(selector, places, model) if "matches no" not in text]
        more = "".join(f". {text}" for text in said)
        rules = ", ".join(map(repr, idle))
        raise PartitionError(f"rule {rules} claims no parameter; the names are {_listing(list(claimed))}{more}")


def _listing(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more


def _label(key: Any) -> str:
    return repr(as_selector(key))


def _show(number: int, group: Mapping[str, Any]) -> None:
    count = sum(p.numel() for _, p in group["params"])
    chosen = ", ".join(f"{key}={value}" for key, value in group.items() if key not in ("params", "name")) or "defaults"
    print(f"group {number} ({group['name']}): {len(group['params'])} tensors, {count:,} parameters; {chosen}")
    for name, p in group["params"]:
        print(f"    {name:<40} {'×'.join(map(str, p.shape)) or 'scalar'}")
