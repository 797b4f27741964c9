"""holonom: train neural networks by simulating them.

Parameters are positions, and an optimizer step is one step of a constrained, stochastic,
partitioned, multirate molecular-dynamics integrator.
"""

from . import constraints, data, init, landscape, metrics, models, multirate, penalties, presets
from .ensemble import Ensemble
from .errors import (
    CheckpointError,
    ConstraintError,
    DataError,
    EnsembleError,
    NonFiniteGradientError,
    PartitionError,
    ProjectionError,
    SchemeError,
)
from .multirate import Multirate
from .optimizer import Langevin
from .partitions import partition
from .recorder import Recorder
from .temperature import (
    SimulatedTempering,
    TemperatureSchedule,
    annealing,
    cycling,
    posterior_temperature,
    prior_weight_decay,
)

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConstraintError",
    "DataError",
    "Ensemble",
    "EnsembleError",
    "Langevin",
    "Multirate",
    "NonFiniteGradientError",
    "PartitionError",
    "ProjectionError",
    "Recorder",
    "SchemeError",
    "SimulatedTempering",
    "TemperatureSchedule",
    "annealing",
    "constraints",
    "cycling",
    "data",
    "init",
    "landscape",
    "metrics",
    "models",
    "multirate",
    "partition",
    "penalties",
    "posterior_temperature",
    "presets",
    "prior_weight_decay",
]
