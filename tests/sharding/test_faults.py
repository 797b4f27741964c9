"""A rank that is killed in the middle of a step: others hear of it, and the run goes on from its last checkpoint."""

import os
import signal
import socket
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


MODULE = ["-m", "tests.sharding.restart"]


def environment(**settings: str) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    common = {"PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **common, **settings}


def torchrun(folder: Path, space: str, *arguments: str, restarts: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [f"--max-restarts={restarts}", *MODULE, str(folder), space, *arguments]
    # Otherwise restarted ranks may look for those that died.
    settings = environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=300, check=False)


def ranks(folder: Path, space: str, *arguments: str) -> list[tuple[int, str]]:
    """Exit codes and errors of two ranks by themselves: torchrun may end the others before they have said anything."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank in "01":
        settings = environment(RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        command = [sys.executable, *MODULE, str(folder), space, *arguments]
        started.append(subprocess.Popen(command, cwd=ROOT, env=settings, stderr=subprocess.PIPE, text=True))
    return [(one.returncode, errors) for one in started for _, errors in [one.communicate(timeout=200)]]


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
    (code, said), (killed, _) = ranks(tmp_path, "circle", "5")
    assert killed == -signal.SIGKILL
    assert code > 0
    assert any(name in said for name in ("RuntimeError", "DistBackendError", "DistNetworkError"))
    assert sorted(path.parent.name for path in tmp_path.glob("*/.metadata")) == ["2", "4"]
    assert not (tmp_path / "end.pt").exists()
