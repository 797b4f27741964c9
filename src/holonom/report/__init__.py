"""Results for readers: one HTML page per run set, and the same facts on a terminal."""

from .page import write_report
from .record import Record, RecordError, load

__all__ = ["Record", "RecordError", "load", "write_report"]
