"""The token of a page's address: it keeps other programs and web pages out."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from ..errors import DataError

TOKEN = re.compile(r"[0-9a-f]{32}")


def fresh_token() -> str:
    return secrets.token_hex(16)


def token_in(folder: Path) -> str:
    """The folder's token, created on the first call and readable by its owner only.

    A page that is open keeps its address when the server is restarted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "token"
    if path.exists():
        token = path.read_text(encoding="ascii", errors="replace").strip()
        if not TOKEN.fullmatch(token):
            raise DataError(f"{path} is damaged; delete it and start again")
        return token
    token = fresh_token()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token
