"""The playground's server.

    GET  /TOKEN/             the page and its parts
    GET  /TOKEN/script.py    the program that repeats the run
    GET  /TOKEN/numbers.csv  the numbers along it
    WS   /TOKEN/live         state and frames to the page, requests from it

A page sends ``{"do": …}``: ``play``, ``pause``, ``step``, ``reset``, ``speed`` with a ``value``, ``set`` with
``settings``, and ``drawn`` when it has drawn a frame; it gets the next one after that. Everybody who has the address
sees and plays the same run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from .. import __version__, _serving
from .engine import SPEEDS, Engine
from .hub import Hub, Page
from .methods import METHODS
from .presets import DEFAULT, PRESETS
from .script import script, table
from .settings import ARM_CONTROLS, CONTROLS, Choice, Control, Number, SettingError, Settings

log = logging.getLogger(__name__)

_PATIENCE = 10.0  # seconds; a page that does not take a message for so long is dropped


class Server(_serving.Server):
    """Serves the playground at the address ``url``."""

    def __init__(self, token: str, port: int = 0) -> None:
        self.hub = Hub()
        self.engine = Engine(PRESETS[DEFAULT].settings, self.hub)
        super().__init__(_app(self.engine, token), token, port)


def _app(engine: Engine, token: str) -> Starlette:
    session = secrets.token_hex(8)  # tells a page whether this is still the server it knows

    hello = json.dumps({"kind": "hello", "session": session, "version": __version__, **catalogue()})

    async def live(socket: WebSocket) -> None:
        await _live(socket, engine, hello)

    async def show_script(request: Request) -> Response:
        text = await asyncio.wrap_future(engine.call(lambda: script(engine.run) if engine.run.has_data else ""))
        if not text:
            return Response("there are no points yet: paint at least two", 409)
        return Response(text, media_type="text/x-python; charset=utf-8", headers=_named("holonom-run.py"))

    async def show_table(request: Request) -> Response:
        text = await asyncio.wrap_future(engine.call(lambda: table(engine.run)))
        return Response(text, media_type="text/csv; charset=utf-8", headers=_named("holonom-run.csv"))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        engine.start()
        yield
        engine.stop()

    routes = [Route("/script.py", show_script), Route("/numbers.csv", show_table), WebSocketRoute("/live", live)]
    page = ("holonom.playground", "page")
    return _serving.make_app(routes, page=page, token=token, command="holonom play", lifespan=lifespan)


def _named(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


async def _live(socket: WebSocket, engine: Engine, hello: str) -> None:
    """One page, until it goes or does not take what it is sent."""
    page = engine.hub.join()
    if page is None:
        await socket.close(1013, "too many pages")
        return
    await socket.accept()
    sending = asyncio.create_task(_send(socket, page, hello))
    try:
        async for text in socket.iter_text():
            await _obey(text, engine, page)
    except (WebSocketDisconnect, RuntimeError):  # it has gone; the second where sending noticed first
        pass
    finally:
        engine.hub.leave(page)
        sending.cancel()
        await asyncio.wait([sending])


async def _send(socket: WebSocket, page: Page, hello: str) -> None:
    try:
        await asyncio.wait_for(socket.send_text(hello), _PATIENCE)
        while True:
            for message in await page.take():
                send = socket.send_text(message) if isinstance(message, str) else socket.send_bytes(message)
                await asyncio.wait_for(send, _PATIENCE)
    except (TimeoutError, asyncio.TimeoutError):
        page.hub.leave(page)
        await socket.close(1008)
    except (WebSocketDisconnect, RuntimeError):  # it has gone
        page.hub.leave(page)


async def _obey(text: str, engine: Engine, page: Page) -> None:
    """Do what a page asks for; the next request is read when this one is done."""
    try:
        request = json.loads(text)
        wish = _wish(request, engine, page)
    except (ValueError, TypeError, KeyError, RecursionError):
        page.hub.tell(page, _problem("request", "this request is not understood"))
        return
    if wish is not None:
        try:
            await asyncio.wrap_future(engine.call(wish))
        except SettingError as error:
            page.hub.tell(page, _problem(error.name, str(error)))
        except Exception as error:
            log.exception("a request failed")
            page.hub.tell(page, _problem("request", f"this could not be done: {error}"))


def _wish(request: Any, engine: Engine, page: Page) -> Callable[[], None] | None:
    do = request["do"]
    if do == "drawn":
        engine.hub.drawn(page)
        return None
    if do == "speed" and request["value"] not in SPEEDS:
        raise ValueError
    wishes: dict[str, Callable[[], None]] = {
        "play": lambda: engine.play(True),
        "pause": lambda: engine.play(False),
        "step": engine.step,
        "reset": engine.reset,
        "speed": lambda: engine.set_speed(request["value"]),
        "set": lambda: engine.set(request["settings"]),
    }
    if do == "set" and "settings" not in request:
        raise ValueError
    return wishes[do]


def _problem(name: str, text: str) -> str:
    return json.dumps({"kind": "problem", "name": name, "text": text})


def catalogue() -> dict[str, Any]:
    """What a page needs to know to draw its controls."""
    return {
        "controls": {name: _described(control) for name, control in CONTROLS.items()},
        "arm_controls": {name: _described(control) for name, control in ARM_CONTROLS.items()},
        "methods": {
            name: {"title": method.title, "settings": dict(method.settings), "scheme": method.fixed.get("scheme")}
            for name, method in METHODS.items()
        },
        "presets": [
            {"name": name, "title": preset.title, "text": preset.text, "settings": preset.settings.to_json()}
            for name, preset in PRESETS.items()
        ],
        "defaults": Settings().to_json(),
        "speeds": SPEEDS,
    }


def _described(control: Control) -> dict[str, Any]:
    kind = "number" if isinstance(control, Number) else "choice" if isinstance(control, Choice) else "word"
    return {"kind": kind, "live": control.live, **asdict(control)}
