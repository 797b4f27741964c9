import numpy as np
import pytest
import torch

from tests.injected import drop_idle_draws, inject

from .harness import Normals


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """The tensors here are small: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def normals(monkeypatch):
    """Inject the noise: the library draws from here instead of its own generator."""
    source = Normals()
    inject(monkeypatch, source.library)
    drop_idle_draws(monkeypatch)
    return source


@pytest.fixture
def rng():
    return np.random.default_rng(20210718)
