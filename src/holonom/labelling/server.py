"""The labelling page's server, for this machine only.

    GET  /TOKEN/                    the page, and its style and script
    GET  /TOKEN/state?person=NAME   progress of this person: total, done, the image to label, the last label
    GET  /TOKEN/image/7             a picture
    POST /TOKEN/label               {"person": NAME, "image": 7, "label": 3}   → state
    POST /TOKEN/undo                {"person": NAME, "image": 7}               → state

The token is stored beside the labels, so that an open page continues to work after the server is restarted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .. import _serving
from .journal import Conflict, Journal, checked_name
from .pictures import Pictures

_MAX_BODY = 2000  # bytes


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

    # Routes that touch files are plain functions, which Starlette runs in threads.

    def show_state(self, request: Request) -> Response:
        return JSONResponse(self.state(self.journal(request.query_params.get("person"))))

    def show_image(self, request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(self.pictures):
            raise HTTPException(404, f"there is no image {number}")
        return Response(self.pictures.contents[number], media_type=self.pictures.kinds[number])

    async def label(self, request: Request) -> Response:
        body = await _body(request)
        return await run_in_threadpool(self._label, body)

    async def undo(self, request: Request) -> Response:
        body = await _body(request)
        return await run_in_threadpool(self._undo, body)

    def _label(self, body: dict[str, Any]) -> Response:
        journal = self.journal(body.get("person"))
        journal.label(body.get("image"), body.get("label"))  # type: ignore[arg-type]
        return JSONResponse(self.state(journal))

    def _undo(self, body: dict[str, Any]) -> Response:
        journal = self.journal(body.get("person"))
        journal.undo(body.get("image"))  # type: ignore[arg-type]
        return JSONResponse(self.state(journal))


class Server(_serving.Server):
    """Serves one task at the address ``url``."""

    def __init__(self, task: Task, port: int) -> None:
        self.task = task
        super().__init__(_app(task), task.token, port)


def make_server(pictures: Pictures, folder: Path, port: int = 0) -> Server:
    """A server that is ready for ``serve_forever()``; port 0 takes a free port."""
    folder = Path(folder)
    return Server(Task(pictures, folder, _serving.token_in(folder)), port)


def _app(task: Task) -> Starlette:
    routes = [
        Route("/state", task.show_state),
        Route("/image/{number:int}", task.show_image),
        Route("/label", task.label, methods=["POST"]),
        Route("/undo", task.undo, methods=["POST"]),
    ]
    page = ("holonom.labelling", "page")
    return _serving.make_app(routes, page=page, token=task.token, command="holonom label", status={Conflict: 409})


async def _body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send application/json")
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > _MAX_BODY:
            raise HTTPException(413, f"a request has at most {_MAX_BODY} bytes")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body must be an object")
    return body
