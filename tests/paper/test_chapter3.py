"""Every experiment of chapter 3 at its smallest size: it ends in claims, tables and figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from .small import check_smoke, need_data

IDS = ["fig3.1", "fig3.6", "fig3.7", "fig3.8", *(f"fig3.{n}" for n in range(10, 20))]


@pytest.mark.parametrize("id", IDS)
def test_smoke(id: str, tmp_path: Path) -> None:
    need_data(id)
    check_smoke(id, tmp_path)
