"""Takes the screenshots of docs/playground.md.

python -m tests.contract.playground_pictures docs
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from .chromium import CHROMIUM, QUIET, playwright
from .test_playground_browser import PATIENCE, Server, settled, until, visit

STEPS = "Number(document.body.dataset.step) >= {}"
ACCURACY = "parseFloat(document.querySelector('[data-arm=A] [data-number=test_accuracy]').textContent) >= {}"


def play(page: Any, preset: str, *conditions: str) -> None:
    """Play a preset until all conditions hold, and wait for the last numbers."""
    page.locator("#reset").click()
    until(page, "document.body.dataset.step === '0'")
    page.locator(f"[data-preset={preset}]").click()
    for condition in conditions:
        until(page, condition, patience=20 * PATIENCE)
    page.locator("#play").click()
    settled(page)
    page.mouse.move(2, 2)
    page.evaluate("scrollTo(0, 0)")


def take(page: Any, server: Server, folder: Path) -> None:
    visit(page, server)
    play(page, "small-network", STEPS.format(4000), ACCURACY.format(97))
    page.screenshot(path=folder / "playground.png", full_page=True)
    play(page, "replicas", STEPS.format(1500))
    page.get_by_label("spread").check()
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=folder / "playground-replicas.png", full_page=True)
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.set_viewport_size({"width": 390, "height": 1500})
    play(page, "orthogonality", STEPS.format(1500), ACCURACY.format(80))
    page.screenshot(path=folder / "playground-phone.png")


def main() -> None:
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as cache, playwright.sync_playwright() as driver:
        server = Server(Path(cache))
        try:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
            page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
            page.set_default_timeout(120_000)
            take(page, server, folder)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
