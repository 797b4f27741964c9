"""The errors holonom raises; each message says what was wrong and what to do."""


class SchemeError(ValueError):
    """A splitting word that cannot be run with one gradient per step."""


class ConstraintError(ValueError):
    """A constraint that cannot hold on the tensor it was given."""


class ProjectionError(RuntimeError):
    """A step left the manifold too far for its projection to have a root."""


class NonFiniteGradientError(RuntimeError):
    """A gradient held NaN or infinity; the weights are still the last good ones."""


class ThermostatError(RuntimeError):
    """A thermostat whose variable ξ has run away, so that momenta vanish or explode in every step."""


class CheckpointError(ValueError):
    """A checkpoint that does not belong to this optimizer."""


class PartitionError(ValueError):
    """Rules that miss a parameter or claim it twice."""


class EnsembleError(ValueError):
    """Models that cannot be stacked, or a batch that does not fit the replicas."""


class DataError(RuntimeError):
    """A data set that is missing, damaged, or not what its name says."""
