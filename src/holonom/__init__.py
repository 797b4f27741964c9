"""holonom: train neural networks by simulating them."""

from . import constraints
from .optimizer import Langevin

__all__ = ["Langevin", "constraints"]
