"""The loss landscape: paths, layers and surfaces between states of a network (thesis 3.4, 6.1)."""

from .adversarial import Adversarial, adversarial
from .evaluation import Evaluation, error_rate, over
from .initial import barrier_groups, barrier_state, fresh, transplanted
from .interpolation import Layers, cost, interpolate, layerwise, trajectory
from .path import Path, Shape, classify
from .states import blocks_of
from .surface import Surface, random_plane, surface, trajectory_plane
from .sweep import Cost, Options

__all__ = [
    "Adversarial",
    "Cost",
    "Evaluation",
    "Layers",
    "Options",
    "Path",
    "Shape",
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
