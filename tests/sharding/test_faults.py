"""A rank that is killed in the middle of a step: others hear of it, and the run goes on from its last checkpoint."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs torch with gloo"),
]

ROOT = Path(__file__).parents[2]


def torchrun(folder: Path, space: str, *arguments: str, restarts: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [f"--max-restarts={restarts}", "-m", "tests.sharding.restart", str(folder), space, *arguments]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    settings["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else restarted ranks may look for those that died
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("space", ["circle", "orthogonal"])
def test_a_killed_run_ends_where_an_undisturbed_one_ends(tmp_path, space):
    ends = []
    for name, killed in (("undisturbed", []), ("killed", ["5"])):
        folder = tmp_path / name
        folder.mkdir()
        done = torchrun(folder, space, *killed, restarts=1)
        assert done.returncode == 0, done.stderr[-3000:]
        ends.append(torch.load(folder / "end.pt", weights_only=True))
    assert (tmp_path / "killed" / "killed").exists()
    assert [end["started at"] for end in ends] == [0, 4]
    torch.testing.assert_close(ends[1]["end"], ends[0]["end"], rtol=0, atol=0)


def test_others_raise_where_a_rank_was_killed(tmp_path):
    """Within the process group's time-out, and no checkpoint of the step is complete."""
    done = torchrun(tmp_path, "circle", "5", restarts=0)
    assert done.returncode != 0
    assert "Signal 9 (SIGKILL)" in done.stderr
    assert "RuntimeError" in done.stderr or "DistBackendError" in done.stderr or "DistNetworkError" in done.stderr
    assert sorted(path.parent.name for path in tmp_path.glob("*/.metadata")) == ["2", "4"]
    assert not (tmp_path / "end.pt").exists()
