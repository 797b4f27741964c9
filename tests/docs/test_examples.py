"""Every example runs, and prints what its text promises."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMISES = {
    "adlala.py": ["Adam: test accuracy", "AdLaLa: test accuracy", "kinetic temperatures"],
    "averaged_weights.py": ["rows of the average", "projected: 1.0000"],
    "bounded_weights.py": ["Circle(radius=0.2", "largest |w|"],
    "constrained_gpt.py": ["AdamW", "on spheres", "norms are off by"],
    "landscape.py": ["the barrier of layer", "mean boundary curvature", "distance travelled"],
    "multirate.py": ["fast from", "multirate needs"],
    "orthonormal_lora.py": ["loss", "max|AᵀA − I|"],
    "orthogonal_hidden_layers.py": ["SGD", "o-CoLA-od", "max|QᵀQ − I|"],
    "own_constraint.py": ["worst violation", "row sums"],
    "posterior_sampling.py": ["mixed", "f(-4.0)"],
    "pretrained.py": ["no checkpoint"],
}
INTEGRATED = {"accelerate_loop.py", "huggingface_trainer.py", "lightning_module.py"}  # tests/integrations runs these
ON_RANKS = {"fsdp_gpt.py": ["loss", "on 2 ranks", "norms are off by"]}  # torchrun starts these
QUICK = "bounded_weights.py"  # runs by default, so that `make test` covers one example
CASES = [name if name == QUICK else pytest.param(name, marks=pytest.mark.docs) for name in PROMISES]


def test_every_example_is_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*PROMISES, *INTEGRATED, *ON_RANKS}


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("name", CASES)
def test_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    for promise in PROMISES[name]:
        assert promise in printed


@pytest.mark.docs
@pytest.mark.parametrize("name", ON_RANKS)
def test_an_example_runs_on_two_ranks(name: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLES / name]
    settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    for promise in ON_RANKS[name]:
        assert promise in done.stdout


@pytest.mark.docs
@pytest.mark.parametrize("name", sorted(INTEGRATED))
def test_an_example_says_which_library_it_needs(name, monkeypatch, capsys) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert capsys.readouterr().out.startswith("this example needs ")


def test_an_example_fits_a_screen() -> None:
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES.glob("*.py"))
