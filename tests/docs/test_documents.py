"""README.md and docs/*.md: Python blocks run, commands parse, links lead somewhere.

The ``python`` blocks of a document run from top to bottom in one namespace. It starts with small stand-ins for
what a reader has: a model, a loader, a loss function.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holonom
from holonom.cli import make_parser

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
pytestmark = pytest.mark.docs


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\b.*?\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


def documents(language: str = "") -> pytest.MarkDecorator:
    """Parametrises over the documents that have blocks of this language."""
    found = [path for path in DOCUMENTS if not language or blocks(path, language)]
    return pytest.mark.parametrize("document", found, ids=lambda path: path.name)


def stand_ins() -> dict[str, Any]:
    x = torch.randn(32, 2)
    y = (x.prod(1, keepdim=True) > 0).float()
    return {
        "holonom": holonom,
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
    names = stand_ins()
    for number, block in enumerate(blocks(document, "python"), 1):
        exec(compile(block, f"{document.name}, block {number}", "exec"), names)
        yield names


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@documents("python")
def test_python_blocks_run(document: Path) -> None:
    for _ in run(document):
        pass


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
