"""``holonom play``."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from contextlib import suppress

from . import arguments, output


def add_commands(commands: arguments.Commands) -> None:
    parser = commands.add_parser("play", help="watch a network learn on a page of this machine, and change everything")
    parser.set_defaults(command=play)
    add = parser.add_argument
    add("--port", type=arguments.whole_number(0, 65535), default=8766, metavar="P",
        help="default: 8766; 0 takes a free one")  # fmt: skip
    add("--no-browser", action="store_true", help="print the address and open nothing")


def play(options: argparse.Namespace) -> int:
    output.require("starlette", "uvicorn", "websockets", "contourpy", extra="playground")
    from ..playground.server import Server

    with suppress(KeyboardInterrupt), Server(_token(), options.port) as server:
        print(server.url, flush=True)
        opened = not options.no_browser and _open(server.url)
        what = "the page is open in your browser" if opened else "open this address in a browser of this machine"
        output.say(f"holonom: {what}; stop with Ctrl-C")
        server.serve_forever()
    return output.DONE


def _token() -> str:
    """The user's token, so that an open page finds the server again when it is restarted."""
    from .._serving import fresh_token, token_in
    from ..data.root import roots

    try:
        return token_in(roots()[-1] / "playground")
    except OSError as error:
        output.say(f"holonom: cannot keep the address for the next start ({error}); set XDG_CACHE_HOME to a folder")
        return fresh_token()


def _open(url: str) -> bool:
    """Open the page where there is a browser with a window; a browser of the terminal would take it."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False
