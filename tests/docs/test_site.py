"""The site builds without a warning, asks no other host for anything, and documents every public name."""

import importlib
import inspect
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.test_documentation import API_MODULES, DOCS, public_names

pytestmark = pytest.mark.docs
FETCHED = {"script": "src", "link": "href", "img": "src", "source": "src", "iframe": "src", "object": "data"}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", folder / "doctrees"]
    built = subprocess.run([*command, DOCS, folder / "html"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""  # nor do the pages' programs warn there
    return folder / "html"


class Fetches(HTMLParser):
    """What a browser fetches to show a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes) -> None:
        found = dict(attributes)
        self.found += [found[FETCHED[tag]]] if found.get(FETCHED.get(tag, "")) else []
        self.found += re.findall(r"url\(([^)]*)\)", found.get("style") or "")


def is_outside(address: str) -> bool:
    return bool(re.match(r"(https?:)?//", address.strip("'\" ")))


def test_it_would_be_seen_if_a_page_asked_another_host():
    text = '<link href="//example.org/a.css"><script src="https://example.org/a.js"></script><img src="_static/a.png">'
    assert [is_outside(address) for address in Fetches(text).found] == [True, True, False]


def test_a_page_asks_no_other_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        found = Fetches(page.read_text()).found
        assert found
        assert [address for address in found if is_outside(address)] == [], page.name
    for sheet in site.rglob("*.css"):
        used = re.findall(r"(?:@import\s+|url\()\s*([^);]*)", sheet.read_text())
        assert [address for address in used if is_outside(address)] == [], sheet.name
    for picture in site.rglob("*.svg"):
        assert not re.search(r"""(?:href|src)=["'](?:https?:)?//""", picture.read_text()), picture.name


def test_equations_are_mathml(site):
    text = (site / "methods.html").read_text()
    assert text.count("<math") > 20
    assert "MathJax" not in text
    assert "katex" not in text
    sheet = (site / "_static" / "site.css").read_text()
    (font,) = re.findall(
        r"""url\("([^"]+)"\)""", sheet
    )  # a font for mathematics: browsers misplace superscripts without one
    assert (site / "_static" / font).stat().st_size < 100_000


def test_tutorials_show_what_they_print_and_draw(site):
    pages = [page for page in (site / "tutorials").glob("*.html") if page.stem != "index"]
    assert len(pages) >= 8
    for page in pages:
        text = page.read_text()
        assert re.search(r'class="[^"]*printed', text), page.name
        source = (DOCS / "tutorials" / page.with_suffix(".md").name).read_text()
        captions = re.findall(r'num="([^"]+)"', source)
        assert captions
        for theme in ("light", "dark"):  # its own pictures, none that another page has left behind
            shown = re.findall(rf'<img alt="([^"]+)" class="only-{theme}" src="\.\./_images/[^"]+\.svg"', text)
            assert shown == captions, page.name


def test_pages_show_what_their_programs_warn_about(site):
    text = re.sub(r"<[^>]+>", "", (site / "start.html").read_text())
    assert "UserWarning: weights that did not satisfy their constraint were moved" in " ".join(text.split())


def test_every_public_name_is_in_the_api(site):
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    written = set(re.findall(r"^(\S+) py:", inventory, re.MULTILINE))
    missing = []
    for module in API_MODULES:
        for name in public_names(importlib.import_module(module)):
            thing = getattr(importlib.import_module(module), name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                places = {f"{module}.{name}", f"holonom.{name}", f"{thing.__module__}.{thing.__qualname__}"}
                missing += [] if places & written else [f"{module}.{name}"]
    assert missing == []
