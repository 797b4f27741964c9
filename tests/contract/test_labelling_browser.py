"""The labelling page in a real browser: keys, clicks, undo, reload, and a server that is killed and restarted.

The server without a browser is tested in tests/unit/test_labelling_server.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holonom.labelling import read_people
from holonom.labelling.journal import order

from .chromium import needs_browser, playwright

pytestmark = needs_browser

COUNT = 8


class Server:
    """``holonom label`` in another process, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        images = np.zeros((COUNT, 28, 28), dtype=np.uint8)
        for number in range(COUNT):
            images[number, 4:24, 3 * number : 3 * number + 4] = 255
        np.savez(folder / "images.npz", images=images)
        self.folder, self.port = folder, 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "holonom", "label", str(self.folder / "images.npz"), "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.split(":")[2].split("/")[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


def expect(page: Any, done: int) -> None:
    """Wait until the page shows image ``done + 1``."""
    playwright.expect(page.locator("#count")).to_have_text(f"{done + 1} of {COUNT}")
    playwright.expect(page.locator("#task")).to_have_attribute("aria-busy", "false")


def test_a_person_labels_all_images(page: Any, server: Server) -> None:
    images = order("Zoë Q", COUNT)
    page.goto(server.url)
    page.get_by_label("Your name").fill("Zoë Q")
    page.get_by_role("button", name="Begin").click()
    expect(page, 0)
    assert page.locator("#image").get_attribute("src") == f"image/{images[0]}"
    assert page.locator("#image").evaluate("image => image.naturalWidth") == 28
    playwright.expect(page.locator("#undo")).to_be_disabled()

    page.keyboard.press("7")
    expect(page, 1)
    page.get_by_role("button", name="3", exact=True).click()
    expect(page, 2)
    page.keyboard.press("x")  # no label
    page.keyboard.press("Control+1")  # a shortcut of the browser
    page.keyboard.press("9")
    expect(page, 3)
    page.keyboard.press("Backspace")
    expect(page, 2)
    page.keyboard.press("0")
    expect(page, 3)
    page.get_by_role("button", name="4", exact=True).click()
    expect(page, 4)
    page.get_by_role("button", name="Undo 4").click()
    expect(page, 3)

    page.reload()
    expect(page, 3)
    assert page.locator("#image").get_attribute("src") == f"image/{images[3]}"
    playwright.expect(page.locator("#undo")).to_have_text("⌫ Undo 0")

    server.kill()
    page.keyboard.press("5")
    playwright.expect(page.get_by_role("alert")).to_contain_text("nothing was saved")
    expect(page, 3)
    server.start()  # the page stays open, its address stays valid
    page.keyboard.press("5")
    expect(page, 4)
    playwright.expect(page.get_by_role("alert")).to_be_hidden()

    for number, digit in enumerate("618", 4):
        expect(page, number)
        page.keyboard.press(digit)
    expect(page, 7)
    page.keyboard.press("2")
    playwright.expect(page.get_by_text(f"All {COUNT} images are labelled")).to_be_visible()
    page.get_by_role("button", name="Undo the last label").click()
    expect(page, 7)
    page.keyboard.press("1")
    playwright.expect(page.get_by_text("Thank you")).to_be_visible()

    people = read_people(server.folder / "labels")
    assert people.names == ("Zoë Q",)
    pressed = dict(zip(images, (7, 3, 0, 5, 6, 1, 8, 1), strict=True))
    assert people.labels[0].tolist() == [pressed[image] for image in range(COUNT)]


def test_two_pages_of_one_person(page: Any, server: Server) -> None:
    page.goto(f"{server.url}#Ann")
    expect(page, 0)
    other = page.context.new_page()
    other.goto(f"{server.url}#Ann")
    expect(other, 0)
    page.keyboard.press("1")
    expect(page, 1)
    other.keyboard.press("2")
    playwright.expect(other.get_by_role("alert")).to_contain_text("behind another one")
    expect(other, 1)
    other.keyboard.press("3")
    expect(other, 2)


def test_only_what_was_seen_is_labelled(page: Any, server: Server) -> None:
    page.goto(f"{server.url}#Ann")
    expect(page, 0)
    page.route("**/image/*", lambda route: route.abort())
    page.keyboard.press("1")
    playwright.expect(page.get_by_role("alert")).to_contain_text("cannot be shown")
    expect(page, 1)
    page.keyboard.press("2")
    expect(page, 1)
    page.unroute("**/image/*")
    page.keyboard.press("3")
    playwright.expect(page.get_by_role("alert")).to_be_hidden()
    expect(page, 1)
    page.keyboard.press("4")
    expect(page, 2)
    playwright.expect(page.locator("#undo")).to_have_text("⌫ Undo 4")


def test_names_are_checked_and_can_be_changed(page: Any, server: Server) -> None:
    page.goto(f"{server.url}#..%2Fann")
    playwright.expect(page.get_by_role("alert")).to_contain_text("a name has")
    page.get_by_label("Your name").fill("Ann")
    page.keyboard.press("Enter")
    expect(page, 0)
    playwright.expect(page.get_by_role("alert")).to_be_hidden()
    page.keyboard.press("1")
    expect(page, 1)
    page.get_by_role("link", name="someone else").click()
    page.get_by_label("Your name").fill("Bob 2")  # digits are letters here, not labels
    page.keyboard.press("Enter")
    expect(page, 0)


@pytest.mark.parametrize("width", [320, 1200])
def test_everything_is_within_reach(page: Any, server: Server, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 640})
    page.goto(f"{server.url}#Ann")
    expect(page, 0)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for digit in range(10):
        key = page.get_by_role("button", name=str(digit), exact=True).bounding_box()
        assert key["height"] >= 44
        assert key["width"] >= 44
        assert key["y"] + key["height"] <= 640
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "someone else"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "1"
    page.keyboard.press("Enter")
    expect(page, 1)
