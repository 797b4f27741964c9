"""Every test begins with the same random numbers, and workers share the cores."""

import os

import pytest
import torch

# Threads that wait for each other spin: two workers with two each on two cores take ten times as long as with one.
THREADS = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
torch.set_num_threads(THREADS)
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))  # for programs that tests start


@pytest.fixture(autouse=True)
def same_random_numbers():
    torch.manual_seed(0)
