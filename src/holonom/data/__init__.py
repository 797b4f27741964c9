"""Data sets, made or read; nothing is downloaded."""

from .spirals import spirals

__all__ = ["spirals"]
