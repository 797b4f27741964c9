"""A posterior that is killed while it is sampled and called again has the draws of the undisturbed run, bit for bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from holonom._files import load

pytestmark = pytest.mark.kill
ROOT = Path(__file__).parents[2]
LIMIT = 120  # seconds for one process
PROGRAM = """
import sys, time, torch
from torch import nn
from holonom import sampling

torch.manual_seed(0)
x, y = torch.randn(12, 2), torch.randn(12, 1)

class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(float(sys.argv[3]))
        return super().forward(x)

batch_size = None if sys.argv[2] == "hmc" else 4
posterior = sampling.sample(
    Slow(2, 1), nn.MSELoss(), (x, y), kernel=sys.argv[2], batch_size=batch_size, steps=200, chains=2, thin=1, seed=0,
    out=sys.argv[1], progress=False,
)
torch.save([posterior.draws, posterior.losses, posterior.lr, posterior.acceptance], sys.argv[1] + "/result.pt")
"""


def start(folder, kernel, pause):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, folder, kernel, str(pause)], env=environment
    )


def finish(folder, kernel):
    assert start(folder, kernel, 0.0).wait(LIMIT) == 0
    return torch.load(folder / "result.pt", weights_only=True)


def kill_after(folder, kernel, least):
    """Kill a run some moments after its checkpoint has so many steps; returns how many it then has."""
    process, end = start(folder, kernel, 0.005), time.monotonic() + LIMIT
    checkpoint = folder / "checkpoint.pt"
    while not (checkpoint.exists() and load(checkpoint, "")["step"] >= least):
        assert process.poll() is None, "it must not end by itself"
        assert time.monotonic() < end
        time.sleep(0.002)
    time.sleep(0.03)
    process.send_signal(signal.SIGKILL)
    assert process.wait(LIMIT) == -signal.SIGKILL
    return load(checkpoint, "")["step"]


@pytest.mark.parametrize("kernel", ["baoab", "hmc"])
def test_a_killed_run_continues_bit_for_bit(kernel, tmp_path):
    """Once in the burn-in, while lr is being chosen, and once after it."""
    straight = finish(tmp_path / "straight", kernel)
    killed = tmp_path / "killed"
    assert 10 <= kill_after(killed, kernel, 10) < 100
    assert 120 <= kill_after(killed, kernel, 120) < 200
    torch.testing.assert_close(finish(killed, kernel), straight, rtol=0, atol=0)
