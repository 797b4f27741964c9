"""The methods an arm may have: how each makes its optimizer, and where its settings are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import holonom
from holonom import presets
from holonom.constraints import Circle, Orthogonal, Sphere
from holonom.partitions import hidden, output, weights

Value = float | str | None

# ── makers, which scripts contain ────────────────────────────────────────────────────────────────


def sgd(model: Any, seed: Any, lr: float, momentum: float, weight_decay: float) -> Any:
    return torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay)


def adam(model: Any, seed: Any, lr: float) -> Any:
    return torch.optim.Adam(model.parameters(), lr)


def multirate(model: Any, seed: Any, every: int, lr: float, momentum: float) -> Any:
    groups = holonom.partition(model, {output: {"every": 1}, "rest": {"every": every}}, verbose=False)
    return holonom.Multirate(groups, lr, momentum)


def free(model: Any, seed: Any, **options: Any) -> Any:
    return holonom.Langevin(model.named_parameters(), seed=seed, fuse=False, **options)


def on_circles(model: Any, seed: Any, radius: Any, output_radius: Any, **options: Any) -> Any:
    inner, last = {"constraint": Circle(radius)}, {"constraint": Circle(output_radius)}
    rules = {weights & ~output: inner, weights & output: last, "rest": {}}
    return holonom.Langevin(holonom.partition(model, rules, verbose=False), seed=seed, fuse=False, **options)


def on_spheres(model: Any, seed: Any, radius: Any, output_radius: Any, **options: Any) -> Any:
    inner, last = {"constraint": Sphere(radius)}, {"constraint": Sphere(output_radius)}
    rules = {weights & ~output: inner, weights & output: last, "rest": {}}
    return holonom.Langevin(holonom.partition(model, rules, verbose=False), seed=seed, fuse=False, **options)


def orthogonal(model: Any, seed: Any, **options: Any) -> Any:
    rules = {weights & hidden: {"constraint": Orthogonal()}, "rest": {}}
    return holonom.Langevin(holonom.partition(model, rules, verbose=False), seed=seed, fuse=False, **options)


def lol(model: Any, seed: Any, **options: Any) -> Any:
    return presets.lol(model, seed=seed, fuse=False, **options)


def adlala(model: Any, seed: Any, **options: Any) -> Any:
    return presets.adlala(model, seed=seed, fuse=False, **options)


# ── the catalogue ────────────────────────────────────────────────────────────────────────────────

ALL, BODY, HEAD = slice(None), slice(0, 1), slice(1, 2)
"""Parameter groups: all, those before the output layer, the output layer."""

PLACES = {name: ((name, ALL),) for name in (
    "lr", "momentum", "weight_decay", "friction", "temperature", "coupling", "driving_noise"
)}  # fmt: skip
IN_LAYERS = {
    "temperature": (("temperature", BODY),),
    "output_temperature": (("temperature", HEAD),),
    "coupling": (("coupling", BODY),),
    "driving_noise": (("driving_noise", BODY),),
}
RADII = ("radius", "output_radius")


@dataclass(frozen=True)
class Method:
    """A row of the menu.

    Attributes:
        title: what it is called.
        make: from (model, seed, **settings) to an optimizer.
        settings: those the page shows, with their defaults, in order.
        fixed: further arguments of ``make``.
        places: where a setting is kept in the optimizer's groups, if not in all under its name.
        least_depth: hidden layers it needs.
    """

    title: str
    make: Callable[..., Any]
    settings: Mapping[str, Value]
    fixed: Mapping[str, Value] = field(default_factory=dict)
    places: Mapping[str, Any] = field(default_factory=dict)
    least_depth: int = 1


CIRCLES = {"radius": 1.0, "output_radius": 5.0}
SPHERES = {"radius": 2.0, "output_radius": 5.0}
THERMOSTAT: dict[str, Value] = {"coupling": None, "driving_noise": None}

METHODS = {
    "sgd": Method("SGD", sgd, {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}),
    "adam": Method("Adam", adam, {"lr": 0.005}),
    "sgld": Method("SGLD", free, {"lr": 0.1, "temperature": 1e-5}, {"scheme": "L"}),
    "baoab": Method(
        "Langevin, BAOAB", free, {"lr": 0.3, "friction": 1.0, "temperature": 1e-5}, {"scheme": "BAOAB"}
    ),
    "adl": Method(
        "Adaptive Langevin", free, {"lr": 0.2, "temperature": 1e-4, **THERMOSTAT}, {"scheme": "BACDEDCAB"}
    ),
    "c_od": Method("C-SGLD", on_circles, {"lr": 0.05, "temperature": 5e-5, **CIRCLES}, {"scheme": "L"}),
    "c_ud": Method(
        "c-CoLA-ud", on_circles, {"lr": 0.3, "friction": 1.0, "temperature": 1e-5, **CIRCLES}, {"scheme": "BAOAB"}
    ),
    "s_od": Method("s-CoLA-od", on_spheres, {"lr": 0.05, "temperature": 1e-5, **SPHERES}, {"scheme": "L"}),
    "s_ud": Method(
        "s-CoLA-ud", on_spheres, {"lr": 0.3, "friction": 1.0, "temperature": 1e-5, **SPHERES}, {"scheme": "BAOAB"}
    ),
    "o_od": Method("o-CoLA-od", orthogonal, {"lr": 0.1, "temperature": 0.0}, {"scheme": "L"}, least_depth=2),
    "o_ud": Method(
        "o-CoLA-ud", orthogonal, {"lr": 0.2, "friction": 1.0, "temperature": 0.0}, {"scheme": "BAOAB"}, least_depth=2
    ),
    "lol": Method(
        "LOL",
        lol,
        {"lr": 0.25, "friction": 0.01, "temperature": 1e-3, "output_temperature": 0.0},
        places={**IN_LAYERS, "friction": (("friction", BODY),)},
    ),
    "adlala": Method(
        "AdLaLa",
        adlala,
        {
            "lr": 0.25, "friction": 0.5, "temperature": 1e-4, "output_temperature": 1e-4, "coupling": 0.1,
            "driving_noise": 0.01,
        },
        places={**IN_LAYERS, "friction": (("friction", HEAD),)},
    ),
    "multirate": Method("Multirate SGD", multirate, {"lr": 0.05, "momentum": 0.9, "every": 5}),
    "word": Method(
        "A word of your own",
        free,
        {
            "scheme": "BAOAB", "space": "free", "lr": 0.2, "friction": 1.0, "temperature": 1e-5, **CIRCLES, **THERMOSTAT
        },
    ),
}  # fmt: skip

SPACES: dict[str, Callable[..., Any]] = {
    "free": free,
    "circles": on_circles,
    "spheres": on_spheres,
    "orthogonal": orthogonal,
}


def needed_depth(method: str, values: Mapping[str, Value]) -> int:
    """Hidden layers that an arm needs: between two of them is the weight that becomes orthogonal."""
    return 2 if values.get("space") == "orthogonal" else METHODS[method].least_depth


def maker(method: str, values: Mapping[str, Value]) -> Callable[..., Any]:
    return SPACES[str(values["space"])] if method == "word" else METHODS[method].make


def unused(method: str, values: Mapping[str, Value]) -> set[str]:
    """Settings without a meaning now: the radii of a word on another space."""
    return set() if maker(method, values) in (on_circles, on_spheres) else values.keys() & set(RADII)


def arguments(method: str, values: Mapping[str, Value], radii: Mapping[str, Any]) -> dict[str, Any]:
    """What the maker is called with, besides model and seed: radii are tensors, which may change in place."""
    found = {**METHODS[method].fixed, **values}
    found |= {name: radii[name] for name in RADII if name in found}
    left_out = {"space", *unused(method, values)}
    return {name: value for name, value in found.items() if name not in left_out}


def tensors(values: Mapping[str, Value]) -> dict[str, Tensor]:
    return {name: torch.tensor(values[name]) for name in RADII if name in values}


def places(method: str) -> dict[str, Any]:
    return {name: METHODS[method].places.get(name, PLACES.get(name)) for name in METHODS[method].settings
            if name in PLACES or name in METHODS[method].places}  # fmt: skip


def make(method: str, values: Mapping[str, Value], model: Any, seed: Any) -> tuple[Any, dict[str, Tensor]]:
    """The optimizer of an arm, and its radii."""
    radii = tensors(values)
    return maker(method, values)(model, seed, **arguments(method, values, radii)), radii
