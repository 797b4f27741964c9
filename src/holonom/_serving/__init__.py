"""What the local pages share: one server process on this machine's own address, behind a token.

:func:`make_app` answers requests, :class:`Server` runs it, :func:`token_in` keeps the token of an address. Requests are
Starlette's business, connections uvicorn's; what is here says who may ask.
"""

from .app import Guard, make_app
from .server import HOST, Server
from .token import fresh_token, token_in

__all__ = ["HOST", "Guard", "Server", "fresh_token", "make_app", "token_in"]
