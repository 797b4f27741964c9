"""A real Chromium; tests that it runs have the marker ``browser`` and the fixture ``page``."""

from __future__ import annotations

import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright: pip install it")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH"),
]

QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
