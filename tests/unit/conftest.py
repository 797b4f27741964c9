import numpy as np
import pytest

from tests.injected import inject

from .harness import Normals


@pytest.fixture
def normals(monkeypatch):
    """Inject the noise: the library draws from here instead of its own generator."""
    source = Normals()
    inject(monkeypatch, source.library)
    return source


@pytest.fixture
def rng():
    return np.random.default_rng(20210718)
