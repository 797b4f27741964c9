"""Links and pictures of the documents lead to files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("**/*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"!?\[[^\]]*\]\(([^)\s]+)\)", document.read_text(encoding="utf-8"))
    files = [link.partition("#")[0] for link in links if not re.match(r"https?:|mailto:", link)]
    assert [name for name in files if name and not (document.parent / name).exists()] == []
