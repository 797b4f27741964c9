"""Every test begins with the same random numbers, workers share the cores, and one make target runs each test."""

import os

import pytest
import torch

TARGETS = {"browser", "distributed", "docs", "integrations", "kill", "long", "studies"}  # markers, see pyproject.toml

# Waiting threads spin: on two cores, two workers with two threads each take ten times as long as with one each.
THREADS = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
torch.set_num_threads(THREADS)
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))  # for programs that tests start


@pytest.fixture(autouse=True)
def same_random_numbers():
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if len(found := TARGETS & {marker.name for marker in item.iter_markers()}) > 1:
            raise pytest.UsageError(f"{item.nodeid} has the markers {sorted(found)}; one target must run it, so one")
