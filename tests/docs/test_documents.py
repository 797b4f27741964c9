"""README.md and docs/: Python blocks run, commands parse, links lead somewhere, tutorials keep their promises.

The ``python`` blocks of a document run from top to bottom in one namespace. It starts with small stand-ins for
what a reader has: a model, a loader, a loss function. Pages that the site executes start with nothing, as there.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

import holonom
from holonom.cli import make_parser
from holonom.constraints import Orthogonal
from holonom.partitions import hidden, weights

from .promises import PROMISES

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts]
DOCUMENTS = [README, *PAGES]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
EXECUTED = [ROOT / "docs" / "start.md", *TUTORIALS]  # by the site's build: executed_pages in docs/conf.py
pytestmark = pytest.mark.docs


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\b.*?\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


def documents(language: str = "") -> pytest.MarkDecorator:
    """Parametrises over the documents that have blocks of this language."""
    found = [path for path in DOCUMENTS if not language or blocks(path, language)]
    return pytest.mark.parametrize("document", found, ids=lambda path: str(path.relative_to(ROOT)))


def stand_ins() -> dict[str, Any]:
    x = torch.randn(32, 2)
    y = (x.prod(1, keepdim=True) > 0).float()
    return {
        "holonom": holonom,
        "Orthogonal": Orthogonal,
        "hidden": hidden,
        "weights": weights,
        "torch": torch,
        "nn": nn,
        "model": holonom.models.mlp([2, 20, 20, 1]),
        "loader": [(x, y)] * 3,
        "loss_fn": nn.functional.binary_cross_entropy_with_logits,
        "x": x,
        "y": y,
    }


def run(document: Path) -> Iterator[dict[str, Any]]:
    """The namespace after each block."""
    names = {} if document in EXECUTED else stand_ins()
    for number, block in enumerate(blocks(document, "python"), 1):
        exec(compile(block, f"{document.name}, block {number}", "exec"), names)
        assert all(plt.figure(figure).get_label() for figure in plt.get_fignums()), "a figure has no caption"
        plt.close("all")
        yield names


def test_every_page_that_runs_promises_something() -> None:
    assert sorted(PROMISES) == sorted(page.stem for page in EXECUTED if blocks(page, "python"))


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@documents("python")
def test_python_blocks_run(document: Path) -> None:
    names: dict[str, Any] = {}
    for after in run(document):
        names = after
    if document in EXECUTED:
        PROMISES[document.stem](names)


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_the_readme_keeps_its_promises() -> None:
    after = run(README)
    optimizer = next(after)["opt"]
    assert len(optimizer.residuals()) == 3
    assert max(optimizer.residuals()) < 1e-5
    models = next(after)["models"]
    assert len(models) == 100
    assert all(p.isfinite().all() for model in models for p in model.parameters())


@documents("bash")
def test_commands_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in "".join(blocks(document, "bash")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            assert set(words[1:]) <= targets
        elif "holonom" in words and "pip" not in words:
            make_parser().parse_args(words[words.index("holonom") + 1 :])


@documents()
def test_links_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    for link in links:
        assert link.startswith("http") or (document.parent / link).exists(), link


def test_something_is_tested() -> None:
    assert len(blocks(README, "python")) >= 2
    assert sum("holonom reproduce" in block for block in blocks(README, "bash")) >= 1
