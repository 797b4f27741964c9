"""Types of command-line arguments: text to value, or an error that says what is wrong."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ..experiments.pieces import Piece

    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


def add_data_root(parser: argparse.ArgumentParser) -> None:
    """The option that several commands share."""
    where = "where data sets lie (default: $HOLONOM_DATA, then the user's cache)"
    parser.add_argument("--data", type=Path, metavar="ROOT", help=where)


def setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise argparse.ArgumentTypeError(f"{value!r} is no number, word in quotes or tuple of them") from None


def whole_number(least: int, most: int = 2**32 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if text.removeprefix("-").isdecimal() else None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, got {text!r}")
        return value

    return parse


def piece(text: str) -> Piece:
    from ..experiments.pieces import Piece

    try:
        return Piece.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def person(text: str) -> str:
    from ..labelling.journal import checked_name

    try:
        return checked_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def device(text: str) -> str:
    import torch

    try:
        torch.empty(0, device=text)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return text
