"""The playground's server without a browser: who may ask, what a page gets, and pages that are slow or gone."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from holonom.cli import main
from holonom.cli import playground as command
from holonom.playground.server import Server

from .test_playground import unpack

PATIENCE = 60.0  # seconds, on a busy machine


@pytest.fixture
def server() -> Iterator[Server]:
    with Server("0123456789abcdef" * 2) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join(PATIENCE)


def wait(what: Callable[[], Any]) -> Any:
    """The first true value of a function."""
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)
    return found


class Page:
    """What live.js does, as far as the server sees it."""

    def __init__(self, server: Server, **options: Any) -> None:
        address = f"ws://127.0.0.1:{server.server_address[1]}/{server.token}/live"
        self._connection = connect(address, max_size=None, open_timeout=PATIENCE, **options)
        self.socket = self._connection.__enter__()
        self.seen: dict[str, Any] = {}

    def send(self, **request: Any) -> None:
        self.socket.send(json.dumps(request))

    def read(self) -> str:
        """The kind of the next message; frames are asked for anew."""
        text = self.socket.recv(timeout=PATIENCE)
        message = json.loads(text) if isinstance(text, str) else unpack(text)[0]
        self.seen[message["kind"]] = message
        if message["kind"] == "frame":
            self.send(do="drawn")
        return str(message["kind"])

    def until(self, kind: str, what: Callable[[dict[str, Any]], Any] = bool) -> dict[str, Any]:
        """Read until there is a message of this kind for which ``what`` holds."""
        end = time.monotonic() + PATIENCE
        while self.read() != kind or not what(self.seen[kind]):
            assert time.monotonic() < end, f"no such {kind}"
        found: dict[str, Any] = self.seen[kind]
        return found

    def set(self, **settings: Any) -> None:
        self.send(do="set", settings=settings)

    def close(self) -> None:
        self._connection.__exit__(None, None, None)


@pytest.fixture
def page(server: Server) -> Iterator[Page]:
    page = Page(server)
    yield page
    page.close()


SMALL = {"points": 40, "width": 6, "arms": [{"method": "sgd"}, {"method": "c_od"}]}


def get(server: Server, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=PATIENCE)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_a_session(server: Server, page: Page) -> None:
    hello = page.until("hello")
    assert len(hello["presets"]) == 6
    assert {"sgd", "adam", "lol", "adlala", "multirate", "word"} <= hello["methods"].keys()
    page.until("state", lambda state: not state["playing"])
    plane = page.seen.get("plane") or page.until("plane")  # it may come before the second state
    assert plane["bound"] == pytest.approx(2.6)
    page.set(**SMALL)
    run = page.until("state", lambda state: state["settings"]["width"] == 6)["run"]
    settled = page.until("frame", lambda frame: frame["run"] == run and frame["settled"])
    assert settled["step"] == 0
    page.send(do="step")
    assert page.until("frame", lambda frame: frame["settled"])["step"] == 1
    page.send(do="play")
    page.until("frame", lambda frame: frame["step"] > 30)
    page.set(arms=[{"method": "sgd", "lr": 0.02}, {"method": "c_od"}])
    page.until("state", lambda state: state["settings"]["arms"][0]["lr"] == 0.02)
    page.send(do="pause")
    page.until("state", lambda state: not state["playing"])
    frame = page.until("frame", lambda frame: frame["settled"])
    assert frame["run"] == run
    assert [arm["step"] for arm in frame["arms"]] == [frame["step"]] * 2
    assert frame["arms"][1]["numbers"]["residual"][0] < 1e-5
    status, text = get(server, f"/{server.token}/script.py")
    assert status == 200
    assert f"range({frame['step']} + 1)" in text.decode()
    assert "('lr', 0.02)" in text.decode()
    assert get(server, f"/{server.token}/numbers.csv")[1].startswith(b"# holonom ")
    page.send(do="reset")
    page.until("state", lambda state: state["run"] == run + 1)
    assert page.until("frame", lambda frame: frame["run"] == run + 1)["step"] == 0


def test_refused_settings_change_nothing(page: Page) -> None:
    run = page.until("state")["run"]
    for settings, name, text in (
        ({"depth": 10, "width": 500}, "width", "too many for the page"),
        ({"arms": [{"method": "word", "scheme": "BAX"}]}, "arms.0.scheme", "no letter X"),
    ):
        page.set(**settings)
        problem = page.until("problem")
        assert problem["name"] == name
        assert text in problem["text"]
    for request in ({"do": "dance"}, {"do": "speed", "value": 3}, {"do": "set"}, [1], 3):
        page.socket.send(json.dumps(request))
        assert "not understood" in page.until("problem")["text"]
    page.socket.send("{")
    page.until("problem")
    page.send(do="reset")
    assert page.until("state", lambda state: state["run"] > run)["settings"]["width"] == 20


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/{wrong}/live", {}),
        ("/live", {}),
        ("/{token}/live", {"Origin": "http://elsewhere.example"}),
        ("/{token}/live", {"Origin": "http://127.0.0.1:1"}),
        ("/{token}/live", {"Origin": "null"}),
    ],
)
def test_other_tokens_and_origins_are_refused(server: Server, path: str, headers: dict[str, str]) -> None:
    place = path.format(wrong="f" * 32, token=server.token)
    with pytest.raises(InvalidStatus, match="HTTP 403"):
        connect(
            f"ws://127.0.0.1:{server.server_address[1]}{place}", additional_headers=headers, open_timeout=PATIENCE
        ).__enter__()
    assert get(server, place.replace("live", "numbers.csv"), **headers)[0] == 403
    assert not server.hub.pages


def test_the_page_comes_from_its_own_origin_only(server: Server) -> None:
    port = server.server_address[1]
    origin = f"http://localhost:{port}"
    status, content = get(server, f"/{server.token}/", Host=f"localhost:{port}", Origin=origin)
    assert status == 200
    assert content.startswith(b"<!doctype html>")
    for name in ("main.js", "style.css"):
        status, content = get(server, f"/{server.token}/{name}")
        assert status == 200
        assert b"http://" not in content.replace(b"http://www.w3.org", b"")
    assert get(server, f"/{server.token}/engine.py")[0] == 404
    assert get(server, f"/{server.token}/", Host="elsewhere.example")[0] == 400
    assert server.server_address[0] == "127.0.0.1"


def test_a_slow_page_slows_nothing(server: Server, page: Page) -> None:
    """It takes no frame after the first, and training goes on."""
    page.set(**SMALL)
    page.send(do="play")
    for _ in range(2):
        before = server.engine.run.step
        wait(lambda before=before: server.engine.run.step > before + 40)
    (waiting,) = server.hub.pages
    assert waiting.frame is None or not waiting.ready
    kinds = []
    with contextlib.suppress(TimeoutError):
        while True:
            text = page.socket.recv(timeout=1.0)
            kinds.append("frame" if isinstance(text, bytes) and b'"frame"' in text[:40] else "other")
    assert kinds.count("frame") == 1


def test_a_hundred_pages_come_and_go(server: Server, page: Page) -> None:
    page.set(**SMALL)
    page.send(do="play")
    others = [Page(server) for _ in range(100)]
    wait(lambda: len(server.hub.pages) == 101)
    for number, other in enumerate(others):
        if number % 2:
            other.close()
        else:
            other.socket.socket.shutdown(socket.SHUT_RDWR)  # without a word
    wait(lambda: len(server.hub.pages) == 1)
    step = page.until("frame")["step"]
    page.until("frame", lambda frame: frame["step"] > step)


def test_nothing_trains_while_nobody_watches(server: Server) -> None:
    page = Page(server)
    page.set(**SMALL)
    page.send(do="play")
    page.until("frame", lambda frame: frame["step"] > 5)
    page.close()
    wait(lambda: not server.hub.pages)
    time.sleep(0.2)
    step = server.engine.run.step
    time.sleep(0.3)
    assert server.engine.run.step == step
    again = Page(server)
    again.until("frame", lambda frame: frame["step"] > step)
    again.close()


# ── the command ──────────────────────────────────────────────────────────────────────────────────


def test_a_port_in_use_is_one_line(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["play", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"holonom: port {port} of 127.0.0.1 cannot be used (")
    assert said.endswith("choose another with --port, or --port 0 for any\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", [["play"], ["label", "{images}"]])
def test_without_the_extra_the_command_names_it(
    words: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    assert main([word.format(images=tmp_path) for word in words]) == 2
    assert capsys.readouterr().err == "holonom: uvicorn not installed; this needs: pip install 'holonom[playground]'\n"


def test_where_no_browser_is_the_address_is_printed(monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not command._open("http://127.0.0.1/")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda url: url.endswith("/"))
    assert command._open("http://127.0.0.1/")


def test_a_cache_that_cannot_be_written_gives_a_token_for_this_time(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = command._token()
    assert command._token() == first
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(command._token()) == 32
    assert "set XDG_CACHE_HOME to a folder" in capsys.readouterr().err
