"""People label images on a local page; :func:`holonom.metrics.agreement` compares their labels with models."""

from .journal import CLASSES, Journal
from .people import People, read_people, write_csv
from .pictures import Pictures, load_pictures
from .server import make_server

__all__ = ["CLASSES", "Journal", "People", "Pictures", "load_pictures", "make_server", "read_people", "write_csv"]
