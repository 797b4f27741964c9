"""Selectors: which parameters a rule claims, as conditions that compose by ``&``, ``|`` and ``~``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import UnionType
from typing import Any, get_args

from torch import Tensor, nn

from .._lines import users_line
from ..errors import PartitionError
from .places import Place
from .roles import check_role


class Selector:
    """A condition on a :class:`Place`, with a label for messages.

    Selectors compose with each other and with all that a rule of :func:`holonom.partition` takes: name patterns, module
    types, functions. ``and``, ``or`` and ``not`` are refused: Python does not let them compose.

    >>> weights & hidden, ~embeddings, role("attention") | role("feed-forward"), "encoder.*" & weights
    """

    def __init__(self, claims: Callable[[Place], bool], label: str, description: str | None = None) -> None:
        self._claims = claims
        self._label = label
        self.patterns: tuple[str, ...] = ()
        """The name patterns that it is made of."""
        self.__doc__ = description or claims.__doc__

    def __call__(self, place: Place) -> bool:
        return bool(self._claims(place))

    def __and__(self, other: Any) -> Selector:
        return _joined(self, other, "&")

    def __rand__(self, other: Any) -> Selector:
        return _joined(other, self, "&")

    def __or__(self, other: Any) -> Selector:
        return _joined(self, other, "|")

    def __ror__(self, other: Any) -> Selector:
        return _joined(other, self, "|")

    def __invert__(self) -> Selector:
        return _made_of([self], lambda place: not self(place), f"~{_in_parentheses(self, '&', '|')}")

    def __bool__(self) -> bool:
        raise TypeError(f"selector {self!r} has no truth value; write &, | and ~ instead of and, or and not")

    def __repr__(self) -> str:
        return self._label


def as_selector(key: Any) -> Selector:
    """A rule's key as a selector: one already, a name pattern, a module type, a function, or a tuple (any of them)."""
    if isinstance(key, Selector):
        return key
    if isinstance(key, str):
        return named(key)
    if isinstance(key, type):
        return of_type(key)
    if isinstance(key, (tuple, UnionType)):
        key = get_args(key) if isinstance(key, UnionType) else key  # nn.Linear | nn.Conv2d
        parts = [as_selector(one) for one in key]
        return _made_of(parts, lambda place: any(part(place) for part in parts), " | ".join(map(repr, parts)))
    if callable(key) and not isinstance(key, nn.Module):  # a module would be called with a Place
        return Selector(key, str(getattr(key, "__name__", key)))
    raise PartitionError(
        f"a rule's key must be a name pattern, a module type, a function of a Place, or 'rest'; got "
        f"{type(key).__name__ if isinstance(key, (nn.Module, Tensor)) else repr(key)}"
    )


def _joined(left: Any, right: Any, sign: str) -> Selector:
    a, b = as_selector(left), as_selector(right)
    label = f" {sign} ".join(_in_parentheses(one, "|") if sign == "&" else repr(one) for one in (a, b))
    join = all if sign == "&" else any
    return _made_of([a, b], lambda place: join(one(place) for one in (a, b)), label)


def _made_of(parts: Sequence[Selector], claims: Callable[[Place], bool], label: str) -> Selector:
    found = Selector(claims, label)
    found.patterns = tuple(pattern for part in parts for pattern in part.patterns)
    return found


def unmatched(selector: Selector, places: Sequence[Place], model: nn.Module) -> list[str]:
    """What to say of each name pattern that matches no parameter."""
    names = {id(place.parameter): place.name for place in places}
    other = {name: names[id(p)] for name, p in model.named_parameters(remove_duplicate=False) if id(p) in names}
    said = []
    for pattern in selector.patterns:
        if any(fnmatchcase(name, pattern) for name in names.values()):
            continue
        tied = next((name for alias, name in other.items() if fnmatchcase(alias, pattern)), None)
        near = get_close_matches(pattern, names.values(), n=1, cutoff=0.6)
        hint = f": did you mean {near[0]!r}?" if near else ""
        said.append(
            f"{pattern!r} matches no parameter{hint}"
            if tied is None
            else f"{pattern!r} is another name of {tied!r}, the same tensor: write that"
        )
    return said


def warn_unmatched(selector: Selector, places: Sequence[Place], model: nn.Module) -> None:
    """After ``~``, in ``|`` or in a tuple a typing error claims too much or too little."""
    for text in unmatched(selector, places, model):
        warnings.warn(f"in {selector!r}, {text}", stacklevel=users_line())


def _in_parentheses(selector: Selector, *signs: str) -> str:
    """The label, in parentheses if it has one of these signs."""
    return f"({selector!r})" if any(f" {sign} " in repr(selector) for sign in signs) else repr(selector)


def _selector(claims: Callable[[Place], bool]) -> Selector:
    return Selector(claims, claims.__name__)


# ── by name, type and role ───────────────────────────────────────────────────────────────────────


def named(pattern: str) -> Selector:
    """Parameters whose name matches a pattern such as ``"encoder.*.weight"``."""
    found = Selector(lambda place: fnmatchcase(place.name, pattern), repr(pattern))
    found.patterns = (pattern,)
    return found


def of_type(kind: type[nn.Module]) -> Selector:
    """Parameters of modules of this type."""
    return Selector(lambda place: isinstance(place.module, kind), kind.__name__)


def role(name: str) -> Selector:
    """Parameters of this role, one of :data:`holonom.partitions.ROLES`."""
    check_role(name)
    return Selector(lambda place: place.role == name, f"role({name!r})")


@_selector
def weights(place: Place) -> bool:
    """Weight matrices and kernels: two or more dimensions, and no part of a norm."""
    return place.ndim >= 2 and place.role not in ("norm", "bias")


@_selector
def biases(place: Place) -> bool:
    """Everything that is not a matrix: biases, and the weights of norms."""
    return not weights(place)


@_selector
def norms(place: Place) -> bool:
    """Weights and biases of norm layers."""
    return place.role == "norm"


@_selector
def embeddings(place: Place) -> bool:
    """Embeddings, those that are the head's weight as well included."""
    return place.role in ("embedding", "tied head")


@_selector
def positions(place: Place) -> bool:
    """Position embeddings, class tokens and other learned inputs."""
    return place.role == "position"


# ── by place ─────────────────────────────────────────────────────────────────────────────────────


@_selector
def first(place: Place) -> bool:
    """The input layer: embeddings and positions, and the first layer unless it is attention or recurrent."""
    return place.reads_input


@_selector
def output(place: Place) -> bool:
    """The heads: the last layer, and what is named as a head."""
    return place.gives_output


@_selector
def hidden(place: Place) -> bool:
    """All but the input layer and the heads."""
    return not place.reads_input and not place.gives_output
