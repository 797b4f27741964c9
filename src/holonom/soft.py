"""Deprecated: :mod:`holonom.penalties`."""

import warnings

from .penalties import orthogonal_penalty

__all__ = ["orthogonal_penalty"]

warnings.warn("holonom.soft is now holonom.penalties", DeprecationWarning, stacklevel=2)
