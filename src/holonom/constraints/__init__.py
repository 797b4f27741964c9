"""Constraints on weights: the sets, or spaces, on which weights can live."""

from .base import Constraint
from .circle import Circle
from .free import Free
from .levelset import LevelSet
from .orthogonal import Orthogonal
from .spectral import Spectral
from .sphere import Sphere
from .views import View

__all__ = ["Circle", "Constraint", "Free", "LevelSet", "Orthogonal", "Spectral", "Sphere", "View"]
