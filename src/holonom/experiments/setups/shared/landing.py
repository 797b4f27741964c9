"""Weights that start outside their circles, where an experiment means them to."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def landing_expected() -> Iterator[None]:
    """Building an optimizer moves weights onto their manifold with a warning; here it is part of the set-up."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="weights that did not satisfy their constraint")
        yield
