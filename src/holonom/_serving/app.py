"""A page and its routes as an application that answers its own page only."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from ..errors import DataError

NAMES = ("127.0.0.1", "localhost")
"""The hosts a request may name. Others reach this machine by a name that a foreign page has made up for it."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
STATUS: Mapping[type[Exception], int] = {ValueError: 400, DataError: 500, OSError: 500}


class Guard:
    """Lets requests through that have the token and, if they name an origin, come from this page."""

    def __init__(self, app: ASGIApp, token: str, command: str) -> None:
        self.app, self.token, self.command = app, token, command

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
        elif problem := self.problem(scope):
            await _refuse(problem, scope, receive, send)
        else:
            await self.app(scope, receive, _with_headers(send))

    def problem(self, scope: Scope) -> str | None:
        token = scope["path"].removeprefix("/").partition("/")[0]
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return f"wrong token; open the address that {self.command} printed"
        headers = Headers(scope=scope)
        if "origin" in headers and urlsplit(headers["origin"]).netloc != headers.get("host"):
            return "another page may not use this one"
        return None


async def _refuse(problem: str, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).close(1008)  # before it is accepted: the browser sees 403
    else:
        await JSONResponse({"error": problem}, 403, headers=HEADERS)(scope, receive, send)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return sending


def make_app(
    routes: Sequence[BaseRoute],
    *,
    page: tuple[str, str],
    token: str,
    command: str,
    status: Mapping[type[Exception], int] | None = None,
    lifespan: Any = None,
) -> Starlette:
    """The routes and the page's files below ``/TOKEN/``; errors are answered as {"error": message}.

    Args:
        page: the package and the folder in it that hold ``index.html`` and its parts.
        command: that prints the address.
        status: of errors that the routes raise, besides :data:`STATUS`.
        lifespan: Starlette's.
    """
    handlers: dict[Any, Any] = {HTTPException: _answer_http}
    handlers |= {kind: _answering(code) for kind, code in {**STATUS, **(status or {})}.items()}
    files = Mount("/", StaticFiles(packages=[page], html=True))
    return Starlette(
        routes=[Mount(f"/{token}", routes=[*routes, files])],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(NAMES)),
            Middleware(Guard, token=token, command=command),
        ],
        exception_handlers=handlers,
        lifespan=lifespan,
    )


def _answer_http(request: Request, error: HTTPException) -> Response:
    """A page that does not exist, or not for this method, is the same to whoever asks."""
    missing = error.status_code in (404, 405)
    detail = (
        "there is no such page" if missing and error.detail in ("Not Found", "Method Not Allowed") else error.detail
    )
    return JSONResponse({"error": detail}, 404 if missing else error.status_code, headers=HEADERS)


def _answering(status: int) -> Any:
    def answer(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status)

    return answer
