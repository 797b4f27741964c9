"""Optimizers for PyTorch that keep weights on constraints and sample at a temperature.

A step is one step of a molecular dynamics simulation: weights are positions, and the loss is the potential energy.
"""

import importlib
from typing import TYPE_CHECKING

from . import constraints, data, init, landscape, metrics, models, multirate, penalties, presets
from ._constrain.constrain import constrain
from ._constrain.held import Held
from ._constrain.together import together
from ._step.landing import init_, project_
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
    ThermostatError,
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

__version__ = "0.2.0"

__all__ = [
    "CheckpointError",
    "ConstraintError",
    "DataError",
    "Ensemble",
    "EnsembleError",
    "Held",
    "Langevin",
    "Multirate",
    "NonFiniteGradientError",
    "PartitionError",
    "ProjectionError",
    "Recorder",
    "SchemeError",
    "SimulatedTempering",
    "TemperatureSchedule",
    "ThermostatError",
    "annealing",
    "batches",
    "constrain",
    "constraints",
    "cycling",
    "data",
    "experiments",
    "gan",
    "init",
    "init_",
    "labelling",
    "landscape",
    "metrics",
    "models",
    "multirate",
    "partition",
    "penalties",
    "posterior_temperature",
    "presets",
    "prior_weight_decay",
    "project_",
    "report",
    "sampling",
    "together",
    "training",
]

# Imported on first use, so that `import holonom` stays quick.
_LAZY = ("batches", "experiments", "gan", "labelling", "report", "sampling", "training")

if TYPE_CHECKING:
    from . import batches, experiments, gan, labelling, report, sampling, training
else:

    def __getattr__(name):
        if name in _LAZY or name == "soft":  # soft: deprecated, says so when it is imported
            return importlib.import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
