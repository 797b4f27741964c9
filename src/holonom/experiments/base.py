"""An experiment: an id, a source, settings for every scale, and a function that returns claims."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .claims import Claim

if TYPE_CHECKING:
    from .run import Run

SCALES = ("smoke", "ci", "large", "paper")
REQUIRED = ("smoke", "ci", "paper")
Body = Callable[["Run", SimpleNamespace], list[Claim]]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the papers.

    ``says`` is the paper's statement in our words; ``data`` names the data sets. ``scales`` holds the settings of
    each size: "smoke" takes seconds, "ci" about two minutes on two cores, "paper" is the published size, and "large",
    if there is one, lies between them. Each must have ``replicas``. ``splits``: it trains by ``Run.each`` alone, and
    can be made in pieces.
    """

    id: str
    title: str
    source: str
    says: str
    scales: Mapping[str, Mapping[str, Any]]
    body: Body
    data: tuple[str, ...] = field(default=())
    splits: bool = False

    def settings(self, scale: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a scale, some of them overridden; without the number of runs."""
        if scale not in self.scales:
            raise ValueError(f"{self.id} has no scale {scale}; it has {', '.join(self.scales)}")
        defaults = {name: value for name, value in self.scales[scale].items() if name != "replicas"}
        if "replicas" in overrides:
            raise ValueError("the number of runs is not a setting: give it as --replicas (in Python: replicas=)")
        if unknown := overrides.keys() - defaults.keys():
            raise ValueError(
                f"{self.id} has no setting {', '.join(sorted(unknown))}; it has {', '.join(defaults) or 'none'}"
            )
        return {**defaults, **overrides}

    @property
    def groups(self) -> frozenset[str]:
        """The parts of the papers it belongs to: "icml", and "chapter4" and so on of the thesis."""
        paper, _, thesis = self.source.partition("thesis")
        chapters = {f"chapter{number}" for number in re.findall(r"\b(\d)\.\d", thesis)}
        return frozenset(chapters | ({"icml"} if paper.startswith("paper") else set()))


_registered: dict[str, Experiment] = {}


def experiment(
    id: str,
    *,
    title: str,
    source: str,
    says: str,
    data: tuple[str, ...] = (),
    splits: Any = False,  # True or False: with that type no scales could be given as **mapping
    **scales: Mapping[str, Any],
) -> Callable[[Body], Body]:
    """Register a function as an experiment; scales are given by name. Nothing else has to be edited."""
    missing = [scale for scale in {*REQUIRED, *scales} if "replicas" not in scales.get(scale, {})]
    if missing or not set(scales) <= set(SCALES):
        raise ValueError(
            f"experiment {id}: give settings with replicas for each of {', '.join(REQUIRED)}, and large if you like"
        )
    scales = {scale: scales[scale] for scale in SCALES if scale in scales}

    def register(body: Body) -> Body:
        if id in _registered and _registered[id].body.__module__ != body.__module__:
            raise ValueError(f"experiment {id} is registered in {_registered[id].body.__module__} already")
        _registered[id] = Experiment(id, title, source, says, scales, body, data, bool(splits))
        return body

    return register


def catalogue() -> dict[str, Experiment]:
    """All experiments, by id, in the order of the papers' numbering.

    Every module of ``studies`` is imported; names that start with an underscore are no studies.
    """
    from . import studies

    for module in pkgutil.iter_modules(studies.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{studies.__name__}.{module.name}")
    return {id: _registered[id] for id in sorted(_registered, key=natural)}


def natural(id: str) -> tuple[Any, ...]:
    """fig3.10 after fig3.9, fig6.1B after fig6.1A, fig7 after both."""
    word, numbers, letter = re.fullmatch(r"(.*?)([\d.]*)([A-Z]?)", id).groups()  # type: ignore[union-attr]
    return word, [int(n) for n in numbers.split(".") if n], letter


def find(id: str) -> Experiment:
    """The experiment of this id."""
    experiments = catalogue()
    if id not in experiments:
        plain = {name.lower(): name for name in experiments}  # also of "Fig. 1"
        word = re.sub(r"\.? ", "", id.lower())
        near = [word] if word in plain else get_close_matches(word, plain, n=3)
        guess = f": do you mean {' or '.join(plain[name] for name in near)}?" if near else ";"
        raise KeyError(f"there is no experiment {id!r}{guess} `holonom list` shows all")
    return experiments[id]
