"""A run in pieces, for several machines or for short sittings: each makes every n-th of the trainings that it can."""

from __future__ import annotations

from typing import NamedTuple


class Piece(NamedTuple):
    """The ``number``-th of ``of`` pieces, counted from 1."""

    number: int = 1
    of: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, place: int) -> bool:
        """Whether the training at a place, counted from 0, is this piece's."""
        return place % self.of == self.number - 1

    @classmethod
    def read(cls, text: str) -> Piece:
        """From "2/3"."""
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ValueError(f"a piece is K/N with K from 1 to N, such as 2/3; got {text!r}")
        return cls(int(number), int(of))


WHOLE = Piece()


class Unfinished(Exception):
    """What follows needs trainings that are other pieces' and are not here."""

    def __init__(self, folder: str, piece: Piece, missing: int, total: int) -> None:
        super().__init__(
            f"piece {piece} is done; {missing} of the {total} trainings that come first are missing in {folder}. Copy "
            f"the other pieces' files there and give --resume: what follows needs all of them"
        )
