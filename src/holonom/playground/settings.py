"""The settings of a run: what they may be, and messages for what they may not."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import nn

from ..errors import ConstraintError, PartitionError, SchemeError
from ..models import mlp
from . import methods, recipe
from .methods import METHODS, Value

LARGEST = 300_000  # weights of all replicas
MOST_PAINTED = 600
REPLICAS = 16
HUGE = 1e300  # larger numbers are none; that of a whole number of many digits cannot be a float
BOUND = 1.3  # of the plane shown, in units of the data's scale

ACTIVATIONS: dict[str, type[nn.Module]] = {"ReLU": nn.ReLU, "Tanh": nn.Tanh, "GELU": nn.GELU, "Sigmoid": nn.Sigmoid}


class SettingError(ValueError):
    """A setting that cannot be used; ``name`` is that of its control, such as "width" or "arms.0.lr"."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class Number:
    """A slider. ``live``: it acts at once; others begin a new run. ``zero``: what a value of 0 or None means.
    ``step``: of a linear slider; a number that is typed may lie between."""

    low: float
    high: float
    scale: str = "linear"  # linear, log, or whole
    live: bool = False
    zero: str | None = None  # "off": 0; "derived": None
    step: float = 1.0

    def read(self, name: str, value: Any) -> Value:
        if self.zero == "derived" and value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -HUGE < value < HUGE:
            raise SettingError(name, f"{name} must be a number, got {value!r:.40}")
        if value == 0 and self.zero == "off":
            return 0.0
        whole = self.scale.startswith("whole")
        if not self.low <= value <= self.high or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            also = {"off": ", or 0", "derived": ", or null to derive it"}.get(self.zero or "", "")
            low, high, got = (f"{x:,}" if isinstance(x, int) else f"{x:g}" for x in (self.low, self.high, value))
            raise SettingError(name, f"{name} must be {kind} from {low} to {high}{also}; got {got}")
        return int(value) if whole else float(value)


@dataclass(frozen=True)
class Choice:
    """A menu."""

    among: tuple[str, ...]
    live = False

    def read(self, name: str, value: Any) -> str:
        if value not in self.among:
            raise SettingError(name, f"{name} must be one of {', '.join(self.among)}; got {value!r}")
        return str(value)


@dataclass(frozen=True)
class Word:
    """A splitting word; whether it is legal shows when its optimizer is made."""

    live = False

    def read(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not 1 <= len(value) <= 40:
            raise SettingError(name, f"{name} must be a word of at most 40 letters such as BAOAB")
        return value


Control = Number | Choice | Word

CONTROLS: dict[str, Control] = {
    "data": Choice(("spirals", "waves", "circles", "xor", "painted")),
    "turns": Number(1.0, 4.0, step=0.25),
    "waves": Number(1.0, 8.0, step=0.5),
    "noise": Number(0.0, 0.3, step=0.01),
    "scale": Number(0.5, 3.0, step=0.1),
    "points": Number(20, 1000, "whole log"),
    "depth": Number(1, 10, "whole"),
    "width": Number(1, 500, "whole log"),
    "activation": Choice(tuple(ACTIVATIONS)),
    "start": Choice(("default", "small")),
    "replicas": Number(1, REPLICAS, "whole"),
    "batch": Number(1, 1000, "whole log", live=True),
    "seed": Number(0, 2**31 - 1, "whole"),
}
ARM_CONTROLS: dict[str, Control] = {
    "scheme": Word(),
    "space": Choice(tuple(methods.SPACES)),
    "every": Number(1, 20, "whole"),
    "lr": Number(1e-4, 2.0, "log", live=True),
    "momentum": Number(0.0, 0.99, live=True, step=0.01),
    "weight_decay": Number(1e-6, 0.1, "log", live=True, zero="off"),
    "friction": Number(1e-3, 1e3, "log", live=True, zero="off"),
    "temperature": Number(1e-8, 1.0, "log", live=True, zero="off"),
    "output_temperature": Number(1e-8, 1.0, "log", live=True, zero="off"),
    "radius": Number(0.01, 20.0, "log", live=True),
    "output_radius": Number(0.01, 20.0, "log", live=True),
    "coupling": Number(1e-4, 1e3, "log", live=True, zero="derived"),
    "driving_noise": Number(1e-5, 1.0, "log", live=True, zero="derived"),
}


@dataclass(frozen=True)
class ArmSettings:
    method: str
    values: Mapping[str, Value]

    def to_json(self) -> dict[str, Any]:
        return {"method": self.method, **self.values}


@dataclass(frozen=True)
class Settings:
    """All that a run depends on, besides what was changed while it ran. ``painted``: (x, y, label) of every point."""

    data: str = "spirals"
    turns: float = 2.0
    waves: float = 3.0
    noise: float = 0.02
    scale: float = 2.0
    points: int = 500
    depth: int = 1
    width: int = 20
    activation: str = "ReLU"
    start: str = "default"
    replicas: int = 1
    batch: int = 25
    seed: int = 0
    arms: tuple[ArmSettings, ...] = ()
    painted: tuple[tuple[float, float, float], ...] = ()

    @property
    def sizes(self) -> list[int]:
        return [2, *[self.width] * self.depth, 1]

    @property
    def bound(self) -> float:
        """The plane shown is [−bound, bound]²."""
        return BOUND * self.scale

    def to_json(self) -> dict[str, Any]:
        shared = {name: getattr(self, name) for name in CONTROLS}
        return {**shared, "arms": [arm.to_json() for arm in self.arms], "painted": [list(p) for p in self.painted]}


def read_settings(given: Any, base: Settings = Settings()) -> Settings:
    """Settings from what a page sent: names that are absent keep the value of ``base``. All is checked.

    Besides whole lists, ``arms.0.lr`` is one setting of an arm, ``arms.1`` an arm, and ``more_painted`` points that are
    added: a page that has not yet received a change does not undo it.
    """
    if not isinstance(given, dict):
        raise SettingError("settings", "settings must be an object")
    parts = {name: value for name, value in given.items() if name.startswith("arms.")}
    unknown = sorted(set(given) - {*CONTROLS, "arms", "painted", "more_painted", *parts})
    if unknown:
        raise SettingError(unknown[0], f"there is no setting {unknown[0]!r}")
    values: dict[str, Any] = {
        name: CONTROLS[name].read(name, value) for name, value in given.items() if name in CONTROLS
    }
    if "arms" in given:
        values["arms"] = _read_arms(given["arms"])
    for name, value in parts.items():
        values["arms"] = _with_part(values.get("arms", base.arms), name, value)
    if "painted" in given:
        values["painted"] = _read_painted(given["painted"])
    if "more_painted" in given:
        more = given["more_painted"]
        before = [list(point) for point in values.get("painted", base.painted)]
        values["painted"] = _read_painted([*before, *more] if isinstance(more, list) else more)
    found = replace(base, **values)
    _check(found, base)
    return found


def _read_arms(given: Any) -> Any:
    if not isinstance(given, list) or not 1 <= len(given) <= 2 or not all(isinstance(arm, dict) for arm in given):
        raise SettingError("arms", "arms must be a list of one or two objects")
    return tuple(_read_arm(f"arms.{number}", arm) for number, arm in enumerate(given))


def _with_part(arms: tuple[ArmSettings, ...], place: str, value: Any) -> tuple[ArmSettings, ...]:
    """Arms with one of them, or one setting of one of them, replaced."""
    word, _, name = place.removeprefix("arms.").partition(".")
    if word not in map(str, range(len(arms))):
        raise SettingError("arms", f"there is no {place!r}: there are {len(arms)} arms")
    number = int(word)
    if name and name != "method":
        value = {**arms[number].to_json(), name: value}
    elif name or not isinstance(value, dict):
        raise SettingError(place, f"{place} must be an object with its method; give arms.{number}")
    return (*arms[:number], _read_arm(f"arms.{number}", value), *arms[number + 1 :])


def _read_arm(place: str, given: dict[str, Any]) -> ArmSettings:
    method = given.get("method")
    if not isinstance(method, str) or method not in METHODS:
        raise SettingError(f"{place}.method", f"there is no method {method!r}; there are {', '.join(METHODS)}")
    defaults = METHODS[method].settings
    for name in given:
        if name != "method" and name not in defaults:
            raise SettingError(f"{place}.{name}", f"{METHODS[method].title} has no setting {name!r}")
    return ArmSettings(method, {
        name: _named(f"{place}.{name}", ARM_CONTROLS[name], name, given.get(name, value))
        for name, value in defaults.items()
    })  # fmt: skip


def _named(place: str, control: Control, name: str, value: Any) -> Value:
    try:
        return control.read(name, value)
    except SettingError as error:
        raise SettingError(place, str(error)) from None


def _read_painted(given: Any) -> Any:
    if not isinstance(given, list) or len(given) > MOST_PAINTED:
        raise SettingError("painted", f"the page takes up to {MOST_PAINTED} painted points")
    limit = Number(-BOUND * 3, BOUND * 3)
    for point in given:
        if not isinstance(point, list) or len(point) != 3 or point[2] not in (0, 1):
            raise SettingError("painted", "a painted point is [x, y, 0 or 1]")
    return tuple((limit.read("painted", x), limit.read("painted", y), float(label)) for x, y, label in given)


def _check(settings: Settings, base: Settings) -> None:
    """What no control can see by itself; arms of ``base`` have been checked."""
    count = sum((a + 1) * b for a, b in pairwise(settings.sizes)) * settings.replicas
    if count > LARGEST:
        many = f" in {settings.replicas} replicas" if settings.replicas > 1 else ""
        raise SettingError(
            "width",
            f"{count:,} weights{many} are too many for the page, which takes up to {LARGEST:,}: choose fewer hidden "
            f"layers, a smaller width or one run",
        )
    for number, arm in enumerate(settings.arms):
        if settings.depth == base.depth and arm in base.arms:
            continue
        _check_arm(f"arms.{number}", arm, settings)


def _check_arm(place: str, arm: ArmSettings, settings: Settings) -> None:
    """Make its optimizer for a network of one unit a layer: what holonom would refuse is refused before it runs."""
    if settings.depth < methods.needed_depth(arm.method, arm.values):
        raise SettingError(
            "depth", f"{METHODS[arm.method].title} holds the weights between two hidden layers: choose 2 or more layers"
        )
    tiny = mlp([2, *[1] * settings.depth, 1])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            methods.make(arm.method, arm.values, tiny, 0)
    except (SchemeError, ConstraintError, PartitionError, ValueError, TypeError) as error:
        name = "scheme" if isinstance(error, SchemeError) else _about(arm, str(error))
        raise SettingError(f"{place}.{name}", str(error)) from None


def _about(arm: ArmSettings, message: str) -> str:
    """The control that a message speaks of first, for the page to mark."""
    found = [(message.find(name), name) for name in arm.values if name in message]
    return min(found)[1] if found else "method"


def draw(settings: Settings) -> tuple[Any, Any, Any, Any]:
    """x, y, x_test, y_test of a run's beginning."""
    import torch

    if settings.data == "painted":
        return recipe.painted([list(point) for point in settings.painted])
    generator = torch.Generator().manual_seed(settings.seed)
    make, options = drawing(settings)
    return (*make(settings.points, generator, **options), *make(recipe.TEST, generator, **options))


def drawing(settings: Settings) -> tuple[Any, dict[str, float]]:
    """The function that draws the points, and its options."""
    make = {"spirals": recipe.spirals, "waves": recipe.waves, "circles": recipe.circles, "xor": recipe.xor}
    own = {"spirals": ("turns",), "waves": ("waves",)}.get(settings.data, ())
    return make[settings.data], {name: getattr(settings, name) for name in (*own, "noise", "scale")}
