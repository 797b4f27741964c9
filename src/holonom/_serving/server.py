"""uvicorn on a socket of this machine's own address."""

from __future__ import annotations

import os
import socket
from types import TracebackType

import uvicorn
from starlette.applications import Starlette

HOST = "127.0.0.1"
_MAX_MESSAGE = 1 << 18  # bytes of one message of a web socket
_PING = 20.0  # seconds; a client that does not answer within as many is dropped


class Server:
    """Serves one application at the address ``url``; one process, no other machine.

    The port is taken when the server is made, so that a port in use raises at once. 0 takes a free one.
    """

    def __init__(self, app: Starlette, token: str, port: int = 0) -> None:
        self.app, self.token = app, token
        self._socket = _listen(port)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ws_max_size=_MAX_MESSAGE,
                ws_ping_interval=_PING,
                ws_ping_timeout=_PING,
                ws_per_message_deflate=False,
                timeout_graceful_shutdown=1,
            )
        )

    @property
    def server_address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()
        return host, port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Answer until :meth:`shutdown`, from another thread, or an interrupt; the argument is socketserver's."""
        self._server.run(sockets=[self._socket])

    def shutdown(self) -> None:
        self._server.should_exit = True

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # elsewhere it would let two servers share a port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise OSError(
            f"port {port} of {HOST} cannot be used ({error.strerror}); choose another with --port, or --port 0 for any"
        ) from None
    return listening
