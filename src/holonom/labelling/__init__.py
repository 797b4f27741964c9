"""People label images on a local page; :func:`holonom.metrics.agreement` compares their labels with models."""

from pathlib import Path
from typing import TYPE_CHECKING

from .journal import CLASSES, Journal
from .people import People, read_people, write_csv
from .pictures import Pictures, load_pictures

if TYPE_CHECKING:
    from .server import Server

__all__ = ["CLASSES", "Journal", "People", "Pictures", "load_pictures", "make_server", "read_people", "write_csv"]


def make_server(pictures: Pictures, folder: Path, port: int = 0) -> "Server":
    """A server that is ready for ``serve_forever()``; port 0 takes a free port. Needs ``holonom[playground]``."""
    from .server import make_server  # the labels of others can be read without a server

    return make_server(pictures, folder, port)
