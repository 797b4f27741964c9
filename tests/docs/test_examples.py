"""Every example runs, and prints what its text promises."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMISES = {
    "adlala.py": ["Adam: test accuracy", "AdLaLa: test accuracy", "kinetic temperatures"],
    "bounded_weights.py": ["Circle(radius=0.2", "largest |w|"],
    "landscape.py": ["the barrier of layer", "mean boundary curvature", "distance travelled"],
    "multirate.py": ["fast from", "multirate needs"],
    "orthogonal_hidden_layers.py": ["SGD", "o-CoLA-od", "max|QᵀQ − I|"],
    "own_constraint.py": ["worst violation", "row sums"],
    "posterior_sampling.py": ["mixed", "f(-4.0)"],
    "pretrained.py": ["no checkpoint"],
}
QUICK = "bounded_weights.py"  # runs by default, so that `make test` covers one example
CASES = [name if name == QUICK else pytest.param(name, marks=pytest.mark.docs) for name in PROMISES]


def test_every_example_is_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PROMISES)


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("name", CASES)
def test_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    for promise in PROMISES[name]:
        assert promise in printed


def test_an_example_fits_a_screen() -> None:
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES.glob("*.py"))
