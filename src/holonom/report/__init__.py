"""Shows results: one HTML page per folder of runs, and a summary on the terminal."""

from .page import write_report
from .record import Record, RecordError, load

__all__ = ["Record", "RecordError", "load", "write_report"]
