"""Partitions: which parameters go to which group, by name, module type or place in the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from .errors import PartitionError

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class Place:
    """Where a parameter sits: its name, its module, and the number of its layer.

    Layers are counted by modules that own a weight of two or more dimensions, in the order the model
    registers them; a module without one (a norm) belongs to the layer before it. The leading dimension
    of an :class:`holonom.Ensemble` counts as none: ``ndim`` is that of one replica's parameter.
    """

    name: str
    parameter: nn.Parameter
    module: nn.Module
    layer: int
    layers: int
    batch_dims: int = 0

    @property
    def ndim(self) -> int:
        return self.parameter.ndim - self.batch_dims

    @property
    def view(self) -> str | None:
        """How a constraint should read the parameter as matrices."""
        kind = [*(["batch"] if self.batch_dims else []), *(["conv"] if self.ndim > 2 else [])]
        return " ".join(kind) or None


def weights(place: Place) -> bool:
    """Weight matrices and kernels: two or more dimensions."""
    return place.ndim >= 2


def biases(place: Place) -> bool:
    """Everything that is not a matrix: biases, and the weights of norms."""
    return place.ndim < 2


def first(place: Place) -> bool:
    """The input layer."""
    return place.layer == 0


def output(place: Place) -> bool:
    """The last layer."""
    return place.layer == place.layers - 1


def hidden(place: Place) -> bool:
    """All but the first and the last layer."""
    return 0 < place.layer < place.layers - 1


Rules = Mapping[Any, Mapping[str, Any]] | Iterable[tuple[Any, Mapping[str, Any]]]


def partition(model: nn.Module, rules: Rules, *, verbose: bool = True) -> Groups:
    """Parameter groups from rules; every parameter must be claimed exactly once.

    A rule's key is a name pattern (``"encoder.*.weight"``), a module type (``nn.Linear``), a function of
    a :class:`Place` such as :func:`weights` or :func:`hidden`, a tuple of these (any of them), or
    ``"rest"`` for what no other rule claims. Its value holds the group's options.

    >>> groups = partition(model, {
    ...     lambda place: weights(place) and hidden(place): {"constraint": Orthogonal()},
    ...     "rest": {},
    ... })

    Args:
        model: the network.
        rules: a mapping, or pairs, from selectors to options.
        verbose: print what went where.
    """
    pairs = list(rules.items()) if isinstance(rules, Mapping) else list(rules)
    places = locate(model)
    claimed: dict[str, list[int]] = {place.name: [] for place in places}
    for number, (selector, _) in enumerate(pairs):
        if selector != "rest":
            for place in places:
                if _matches(selector, place):
                    claimed[place.name].append(number)
    rest = [number for number, (selector, _) in enumerate(pairs) if selector == "rest"]
    if len(rest) > 1:
        raise PartitionError('"rest" is given twice; every parameter belongs to one group')
    for selector, options in pairs:
        if "params" in options:
            raise PartitionError(f"rule {_label(selector)} sets 'params'; which parameters it gets is what it claims")
    for numbers in claimed.values():
        if not numbers and rest:
            numbers.append(rest[0])
    _check(claimed, pairs)

    groups: Groups = []
    for number, (selector, options) in enumerate(pairs):
        own = [place for place in places if claimed[place.name] == [number]]
        groups.append({"params": [(place.name, place.parameter) for place in own], **options})
        if verbose:
            _show(number, selector, own, options)
    return [group for group in groups if group["params"]]


def locate(model: nn.Module) -> list[Place]:
    """Every parameter of a model and where it sits; shared parameters count once."""
    found = []
    layer = -1
    batch_dims = getattr(model, "batch_dims", 0)
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        own = [(name, p) for name, p in module.named_parameters(prefix, recurse=False) if id(p) not in seen]
        seen.update(id(p) for _, p in own)
        if any(p.ndim - batch_dims >= 2 for _, p in own):
            layer += 1
        found += [(name, p, module, max(layer, 0)) for name, p in own]
    return [Place(name, p, module, at, max(layer + 1, 1), batch_dims) for name, p, module, at in found]


def _matches(selector: Any, place: Place) -> bool:
    if isinstance(selector, tuple):
        return any(_matches(one, place) for one in selector)
    if isinstance(selector, str):
        return fnmatchcase(place.name, selector)
    if isinstance(selector, type):
        return isinstance(place.module, selector)
    if callable(selector):
        return bool(selector(place))
    raise PartitionError(
        f"a rule's key must be a name pattern, a module type, a function of a Place, or 'rest'; got {selector!r}"
    )


def _check(claimed: dict[str, list[int]], pairs: list[tuple[Any, Any]]) -> None:
    missed = [name for name, numbers in claimed.items() if not numbers]
    if missed:
        raise PartitionError(f"no rule claims {_listing(missed)}; add a rule, or 'rest': {{}} for all others")
    twice = {name: numbers for name, numbers in claimed.items() if len(numbers) > 1}
    if twice:
        name, numbers = next(iter(twice.items()))
        rules = " and ".join(_label(pairs[n][0]) for n in numbers)
        raise PartitionError(
            f"{len(twice)} parameter(s) are claimed twice, {name!r} by {rules}; make the rules disjoint"
        )
    unused = [_label(s) for n, (s, _) in enumerate(pairs) if s != "rest" and [n] not in claimed.values()]
    if unused:
        raise PartitionError(f"rule {', '.join(unused)} claims no parameter; the names are {_listing(list(claimed))}")


def _listing(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more


def _label(selector: Any) -> str:
    if isinstance(selector, tuple):
        return " | ".join(map(_label, selector))
    return repr(selector) if isinstance(selector, str) else str(getattr(selector, "__name__", selector))


def _show(number: int, selector: Any, places: list[Place], options: Mapping[str, Any]) -> None:
    count = sum(place.parameter.numel() for place in places)
    chosen = ", ".join(f"{key}={value}" for key, value in options.items()) or "defaults"
    print(f"group {number} ({_label(selector)}): {len(places)} tensors, {count:,} parameters; {chosen}")
    for place in places:
        print(f"    {place.name:<40} {'×'.join(map(str, place.parameter.shape)) or 'scalar'}")
