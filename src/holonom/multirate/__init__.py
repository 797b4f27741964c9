"""Multirate training (thesis chapter 5): parts of a network on time scales of their own.

Slow parameters get a gradient every k steps and drift in between; ``due()`` keeps autograd away from
them on all other steps.
"""

from . import averaging, mts, resonance
from .bound import convergence_bound
from .composite import Composite
from .distributed import reduce_due
from .due import RateError
from .langevin import MultirateLangevin
from .optimizer import Multirate
from .planning import Cost, Plan, plan
from .subsets import RandomSubsets
from .wrap import MultirateWrapper

__all__ = [
    "Composite",
    "Cost",
    "Multirate",
    "MultirateLangevin",
    "MultirateWrapper",
    "Plan",
    "RandomSubsets",
    "RateError",
    "averaging",
    "convergence_bound",
    "mts",
    "plan",
    "reduce_due",
    "resonance",
]
