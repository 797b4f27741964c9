"""The labelling server without a browser, and the command that starts it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from holonom.cli import main
from holonom.errors import DataError
from holonom.labelling import Pictures, load_pictures, make_server, read_people
from holonom.labelling.journal import order
from holonom.labelling.pictures import encode
from holonom.labelling.server import Server

from .labels import IMAGES, label_all, open_journal, write_images

# ── the server ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with make_server(load_pictures(write_images(tmp_path)), tmp_path / "labels") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def send(
    server: Server, path: str, body: Any = None, *, headers: dict[str, str] | None = None, token: str | None = None
) -> tuple[int, Any]:
    """Status and content of one request to a path behind the token; a body is posted, as JSON unless it is bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(
        "GET" if body is None else "POST",
        f"/{server.task.token if token is None else token}/{path}",
        content,
        {"Content-Type": "application/json", **(headers or {})},
    )
    answer = connection.getresponse()
    read = answer.read()
    kind = answer.headers.get_content_type()
    connection.close()
    return answer.status, json.loads(read) if kind == "application/json" else read


def test_a_session(server: Server, tmp_path: Path) -> None:
    images = order("Zoë", 6)
    status, state = send(server, f"state?person={quote('Zoë')}")
    assert status == 200
    assert state == {"person": "Zoë", "total": 6, "done": 0, "image": images[0], "last": None}
    assert send(server, f"image/{images[0]}") == (200, encode(IMAGES[images[0]]))
    status, state = send(server, "label", {"person": "Zoë", "image": images[0], "label": 7})
    assert (status, state["done"], state["image"], state["last"]) == (
        200,
        1,
        images[1],
        {"image": images[0], "label": 7},
    )
    status, state = send(server, "undo", {"person": "zoë", "image": images[0]})
    assert (status, state["done"], state["image"], state["last"]) == (200, 0, images[0], None)
    for image in images:
        status, state = send(server, "label", {"person": "Zoë", "image": image, "label": image})
    assert (state["done"], state["image"]) == (6, None)
    assert read_people(tmp_path / "labels").labels.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_the_page_and_its_parts(server: Server) -> None:
    for name, start in (("", b"<!doctype html>"), ("page.css", b":root"), ("page.js", b"//")):
        status, content = send(server, name)
        assert status == 200
        assert content.startswith(start)
        assert b"http" not in content  # no external resources


FIRST = order("Ann", 6)[0]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("label", {"person": "Ann", "image": FIRST, "label": 10}, 400, "0 to 9"),
        ("label", {"person": "Ann", "image": FIRST, "label": "3"}, 400, "0 to 9"),
        ("label", {"person": "Ann", "image": FIRST}, 400, "0 to 9"),
        ("label", {"person": "Ann", "image": 6, "label": 3}, 400, "there is no image 6"),
        ("label", {"person": "Ann", "image": [1], "label": 3}, 400, "there is no image"),
        ("label", {"person": "../ann", "image": FIRST, "label": 3}, 400, "a name has"),
        ("label", {"image": FIRST, "label": 3}, 400, "say who"),
        ("label", {"person": "Ann", "image": (FIRST + 1) % 6, "label": 3}, 409, "not the one to label now"),
        ("label", b"{", 400, "not JSON"),
        ("label", b"[" * 1900, 400, "not JSON"),
        ("label", [1], 400, "object"),
        ("label", b"x" * 2001, 413, "at most"),
        ("state", {"person": "Ann"}, 404, "no such page"),
        ("state", None, 400, "say who"),
        ("image/6", None, 404, "no image 6"),
        ("image/-1", None, 404, "no such page"),
        ("image/../token", None, 404, "no such page"),
        ("../labels/token", None, 404, "no such page"),
        ("%2e%2e/token", None, 404, "no such page"),
        ("token", None, 404, "no such page"),
        ("page.html", None, 404, "no such page"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused(
    server: Server, tmp_path: Path, path: str, body: Any, status: int, message: str
) -> None:
    found, answer = send(server, path, body)
    assert found == status
    assert message in answer["error"]
    assert os.listdir(tmp_path / "labels") == ["token"]


def test_requests_without_the_token_are_refused(server: Server) -> None:
    for token in ("", "x" * 32, server.task.token[:-1], server.task.token.upper() + "x", "%00", ".."):
        for path, body in (("", None), ("state?person=Ann", None), ("label", {"person": "Ann"})):
            assert send(server, path, body, token=token)[0] == 403
    assert send(server, "", headers={"Host": "elsewhere.example"})[0] == 400
    assert send(server, "", headers={"Origin": "http://elsewhere.example"})[0] == 403
    assert send(server, "label", b"person=Ann", headers={"Content-Type": "text/plain"})[0] == 415
    assert send(server, "label", b"{}", headers={"Content-Length": "many"})[0] == 400
    assert server.server_address[0] == "127.0.0.1"
    assert (server.task.folder / "token").stat().st_mode & 0o077 == 0


def test_the_address_survives_a_restart(tmp_path: Path) -> None:
    pictures = Pictures((b"",), ("image/png",), "f")
    with make_server(pictures, tmp_path) as first:
        url, port = first.url, first.server_address[1]
        with pytest.raises(OSError, match=f"port {port} .* choose another"):
            make_server(pictures, tmp_path, port)
    with make_server(pictures, tmp_path, port) as second:
        assert second.url == url
    (tmp_path / "token").write_text("../x")
    with pytest.raises(DataError, match="token is damaged"):
        make_server(pictures, tmp_path)


def test_damaged_labels_are_reported(server: Server, tmp_path: Path) -> None:
    (tmp_path / "labels" / "ann.labels").write_text("nothing\n")
    status, answer = send(server, "state?person=Ann")
    assert status == 500
    assert "damaged" in answer["error"]


# ── the command ──────────────────────────────────────────────────────────────────────────────────


def test_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_images(tmp_path)
    fingerprint = load_pictures(images).fingerprint
    label_all(open_journal(tmp_path / "labels", "Ann", fingerprint=fingerprint), [5, 4, 3, 2, 1, 0])
    unfinished = open_journal(tmp_path / "labels", "Bob", fingerprint=fingerprint)
    unfinished.label(unfinished.order[0], 1)
    assert main(["label", str(images), "--export", str(tmp_path / "labels.csv")]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'labels.csv'}\n"
    assert "left out Bob" in said.err
    assert read_people(tmp_path / "labels.csv").labels.tolist() == [[5, 4, 3, 2, 1, 0]]


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["label", str(tmp_path / "nothing.npz")]) == 2
    assert "there are no images" in capsys.readouterr().err
    assert main(["label", str(write_images(tmp_path)), "--export", str(tmp_path / "out.csv")]) == 2
    assert "there are no labels" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["label", str(tmp_path), "--labeller", "../ann"])
    assert "a name has" in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holonom", "label", str(write_images(tmp_path)), "--port", "0",
               "--labeller", "Ann Lee"]  # fmt: skip
    # A background job of a shell ignores SIGINT, and its children inherit that.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    try:
        assert process.stdout is not None
        url = process.stdout.readline()
        token = (tmp_path / "labels" / "token").read_text().strip()
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith(f"/{token}/#Ann%20Lee\n")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in said
