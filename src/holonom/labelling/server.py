"""The labelling page's server: serves this machine only, needs nothing but the standard library.

    GET  /TOKEN/                    the page, and its style and script
    GET  /TOKEN/state?person=NAME   progress of this person: total, done, the image to label, the last label
    GET  /TOKEN/image/7             a picture
    POST /TOKEN/label               {"person": NAME, "image": 7, "label": 3}   → state
    POST /TOKEN/undo                {"person": NAME, "image": 7}               → state

The token keeps other programs and web pages out. It is stored beside the labels, so that an open page
continues to work after the server is restarted.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import sys
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..errors import DataError
from .journal import Conflict, Journal, checked_name
from .pictures import Pictures

HOST = "127.0.0.1"
PAGES = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
TOKEN = re.compile(r"[0-9a-f]{32}")
_MAX_BODY = 2000  # bytes
_POLICY = "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'"


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Task:
    """The images, and the journals of the people who label them."""

    pictures: Pictures
    folder: Path
    token: str
    _journals: dict[str, Journal] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def journal(self, person: object) -> Journal:
        if not isinstance(person, str):
            raise ValueError("say who labels: person must be a name")
        with self._lock:
            key = checked_name(person).casefold()
            if key not in self._journals:
                self._journals[key] = Journal(self.folder, person, len(self.pictures), self.pictures.fingerprint)
            return self._journals[key]

    def state(self, journal: Journal) -> dict[str, Any]:
        given = journal.given
        last = next(reversed(given.items()), None)
        return {
            "person": journal.person,
            "total": len(self.pictures),
            "done": len(given),
            "image": journal.next(given),
            "last": last and {"image": last[0], "label": last[1]},
        }


class Server(ThreadingHTTPServer):
    """Serves one task at the address ``url``."""

    daemon_threads = True

    def __init__(self, task: Task, port: int) -> None:
        self.task = task
        super().__init__((HOST, port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the page was closed during the reply
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/{self.task.token}/"


def make_server(pictures: Pictures, folder: Path, port: int = 0) -> Server:
    """A server that is ready for ``serve_forever()``; port 0 takes a free port."""
    folder = Path(folder)
    task = Task(pictures, folder, _token(folder))
    try:
        return Server(task, port)
    except OSError as error:
        raise OSError(f"port {port} of {HOST} cannot be used ({error.strerror}); choose another") from None


def _token(folder: Path) -> str:
    """The folder's token, created on the first call and readable by its owner only."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "token"
    if path.exists():
        token = path.read_text(encoding="ascii", errors="replace").strip()
        if not TOKEN.fullmatch(token):
            raise DataError(f"{path} is damaged; delete it and start again")
        return token
    token = secrets.token_hex(16)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, handle: Any) -> None:
        try:
            kind, content = handle(*self._place())
            status = HTTPStatus.OK
        except Refused as error:
            status, message = error.status, str(error)
        except Conflict as error:
            status, message = HTTPStatus.CONFLICT, str(error)
        except ValueError as error:
            status, message = HTTPStatus.BAD_REQUEST, str(error)
        except (DataError, OSError) as error:
            status, message = HTTPStatus.INTERNAL_SERVER_ERROR, str(error)
        if status != HTTPStatus.OK:
            kind, content = "application/json", json.dumps({"error": message}).encode()
            self.close_connection = True  # the rest of a refused request must not be read as the next one
        self.send_response(status)
        for name, value in {
            "Content-Type": kind if kind.startswith("image/") else f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": _POLICY,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            **({"Connection": "close"} if self.close_connection else {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _place(self) -> tuple[str, dict[str, list[str]]]:
        """The path behind the token, and the query; refuses other hosts and tokens."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if host not in (HOST, "localhost"):
            raise Refused(HTTPStatus.FORBIDDEN, "this server answers requests for 127.0.0.1 and localhost only")
        address = urlsplit(self.path)
        token, slash, rest = address.path.removeprefix("/").partition("/")
        if not (slash and hmac.compare_digest(token.encode(), self.server.task.token.encode())):
            raise Refused(HTTPStatus.FORBIDDEN, "wrong token; open the address that holonom label printed")
        return rest, parse_qs(address.query)

    def _get(self, place: str, query: dict[str, list[str]]) -> tuple[str, bytes]:
        task = self.server.task
        if place in PAGES:
            return PAGES[place], (files(__package__) / (place or "page.html")).read_bytes()
        if place == "state":
            return _json(task.state(task.journal(query.get("person", [None])[0])))
        number = re.fullmatch(r"image/([0-9]{1,9})", place)
        if number is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        if int(number[1]) >= len(task.pictures):
            raise Refused(HTTPStatus.NOT_FOUND, f"there is no image {int(number[1])}")
        return task.pictures.kinds[int(number[1])], task.pictures.contents[int(number[1])]

    def _post(self, place: str, query: dict[str, list[str]]) -> tuple[str, bytes]:
        task = self.server.task
        if place not in ("label", "undo"):
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        body = self._body()
        journal = task.journal(body.get("person"))
        if place == "label":
            journal.label(body.get("image"), body.get("label"))  # type: ignore[arg-type]
        else:
            journal.undo(body.get("image"))  # type: ignore[arg-type]
        return _json(task.state(journal))

    def _body(self) -> dict[str, Any]:
        if self.headers.get_content_type() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdecimal():
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "the Content-Length header must be a whole number")
        if int(length) > _MAX_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {_MAX_BODY} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise Refused(HTTPStatus.BAD_REQUEST, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, "the body must be an object")
        return body

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing: the terminal shows what `holonom label` prints."""


def _json(value: dict[str, Any]) -> tuple[str, bytes]:
    return "application/json", json.dumps(value).encode()
