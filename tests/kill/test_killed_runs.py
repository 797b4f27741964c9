"""A compiled run that is killed again and again ends, resumed, where the undisturbed run ends, bit for bit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from .arms import ARMS, STEPS

pytestmark = pytest.mark.kill
ROOT = Path(__file__).parents[2]
LIMIT = 240  # seconds for one process


def start(folder, cache, pause=0.0):
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.kill.arms", str(folder), str(pause)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def finish(process):
    process.communicate(timeout=LIMIT)
    assert process.returncode == 0


def kill_at(process, arm, least, delay):
    """Kill the process some seconds after it said that an arm has taken so many steps."""
    for line in process.stdout:
        name, step = line.split()
        if name == arm and int(step) >= least:
            time.sleep(delay)
            break
    else:
        pytest.fail(f"the program ended before {arm} took {least} steps")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGKILL


def plan(seed):
    """Three moments for the first arm, one for each of the others: a step, and how long after it."""
    chosen = random.Random(seed)
    first, *others = ARMS
    moments = [(first, step) for step in sorted(chosen.sample(range(2, STEPS - 4), 3))]
    moments += [(arm, chosen.randrange(2, STEPS - 4)) for arm in others]
    return [(arm, step, chosen.choice([0.0, 0.01, 0.03])) for arm, step in moments]


@pytest.mark.parametrize("seed", [0])
def test_a_run_killed_at_many_moments_is_the_undisturbed_run(seed, tmp_path):
    cache = tmp_path / "cache"
    finish(start(tmp_path / "straight", cache))
    killed = tmp_path / "killed"
    for arm, step, delay in plan(seed):
        kill_at(start(killed, cache, pause=0.05), arm, step, delay)
        saved = torch.load(killed / f"{arm}.pt", weights_only=True)["step"] if (killed / f"{arm}.pt").exists() else 0
        assert saved < STEPS, "it must be killed before the arm is done"
        assert not (killed / "result.pt").exists()
    finish(start(killed, cache))
    straight, resumed = (torch.load(tmp_path / x / "result.pt", weights_only=True) for x in ("straight", "killed"))
    assert straight.keys() == resumed.keys() == ARMS.keys()
    for arm, result in straight.items():
        assert result["history"]["steps"] == list(range(0, STEPS + 1, 2))
        torch.testing.assert_close(resumed[arm], result, rtol=0, atol=0, msg=lambda text, arm=arm: f"{arm}: {text}")


def test_a_checkpoint_is_whole_at_every_moment(tmp_path):
    """Killed while it writes: the file is the last one or the new one, never a part."""
    program = (
        "import sys, torch; from pathlib import Path; from holonom._files import save\n"
        "for n in range(10**6):\n"
        "    save({'n': n, 'x': torch.full((200_000,), float(n))}, Path(sys.argv[1]))\n"
        "    print(n, flush=True)"
    )
    file, chosen = tmp_path / "run.pt", random.Random(1)
    for _ in range(3):
        command = [sys.executable, "-c", program, str(file)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if int(line) >= 5:
                break
        time.sleep(chosen.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=LIMIT)
        saved = torch.load(file, weights_only=True)
        assert saved["n"] >= 5
        assert bool((saved["x"] == saved["n"]).all())
