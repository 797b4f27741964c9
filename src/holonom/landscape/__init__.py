"""The loss landscape: paths, layer-wise paths and surfaces between states of a network (thesis 3.4, 6.1)."""

from typing import TYPE_CHECKING, Any

from .adversarial import Adversarial, adversarial
from .evaluation import Evaluation, error_rate, over
from .initial import barrier_groups, barrier_state, fresh, transplanted
from .interpolation import Layers, cost, interpolate, layerwise, trajectory
from .path import BarrierProfile, Path, _deprecated, classify
from .states import blocks_of
from .surface import Surface, random_plane, surface, trajectory_plane
from .sweep import Cost, Options

__all__ = [
    "Adversarial",
    "BarrierProfile",
    "Cost",
    "Evaluation",
    "Layers",
    "Options",
    "Path",
    "Surface",
    "adversarial",
    "barrier_groups",
    "barrier_state",
    "blocks_of",
    "classify",
    "cost",
    "error_rate",
    "fresh",
    "interpolate",
    "layerwise",
    "over",
    "random_plane",
    "surface",
    "trajectory",
    "trajectory_plane",
    "transplanted",
]

if TYPE_CHECKING:
    Shape = BarrierProfile
else:

    def __getattr__(name: str) -> Any:
        if name == "Shape":
            _deprecated("landscape.Shape", "landscape.BarrierProfile")
            return BarrierProfile
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
