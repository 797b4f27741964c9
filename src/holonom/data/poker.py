"""Poker hands: read from the UCI file, dealt, and classified by the rules."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import DataError
from .root import Root, read_text
from .table import Table

SUITS, RANKS, CARDS = 4, 13, 5
LEVELS = (SUITS, RANKS) * CARDS
HANDS = (
    *("nothing", "one pair", "two pairs", "three of a kind", "straight"),
    *("flush", "full house", "four of a kind", "straight flush", "royal flush"),
)


def poker(root: Root = None, *, verify: bool = True) -> Table:
    """25,010 hands (thesis Fig. 3.19): suit (0–3) and rank (0–12, the ace first) of five cards, and one of ten classes.

    The file is not a random sample: it holds five royal flushes, where chance gives one in 650,000 hands.
    :func:`deal_poker` draws a random sample.
    """
    file = "poker-hand-training-true.data"
    lines = read_text("uci-poker-hand", file, root, verify=verify).split()
    try:
        rows = torch.tensor([[int(entry) for entry in line.split(",")] for line in lines])
        attributes, labels = rows[:, :-1] - 1, rows[:, -1]
    except ValueError as error:
        raise DataError(f"{file} should hold rows of eleven whole numbers: {error}") from error
    wrong = _malformed(attributes, labels)
    if wrong is not None:
        raise DataError(f"{file}, line {wrong + 1} is no hand of five different cards and its class: {lines[wrong]}")
    return Table(attributes, labels, LEVELS)


def deal_poker(hands: int, *, generator: torch.Generator | None = None) -> Table:
    """Hands dealt from a full deck, every ordered hand equally likely, and their classes."""
    dealt = torch.empty(hands, 0, dtype=torch.int64)
    for held in range(CARDS):
        card = torch.randint(SUITS * RANKS - held, (hands,), generator=generator)
        # Take the card-th card left in the deck: skip the dealt ones, from the lowest.
        for taken in dealt.sort(1).values.unbind(1):
            card = card + (card >= taken)
        dealt = torch.cat([dealt, card[:, None]], 1)
    attributes = torch.stack([dealt // RANKS, dealt % RANKS], 2).flatten(1)
    return Table(attributes, classify_poker(attributes), LEVELS)


def classify_poker(attributes: Tensor) -> Tensor:
    """The class 0–9 of every hand, see ``HANDS``; attributes are (N, 10) as in :class:`Table`.

    The ace is low or high in a straight. Pairs, triples and full houses follow from the two largest
    counts of one rank.
    """
    suits, ranks = attributes[:, 0::2], attributes[:, 1::2]
    held = torch.zeros(len(ranks), RANKS, dtype=torch.int64).scatter_add(1, ranks, torch.ones_like(ranks))
    most, second = held.topk(2, 1).values.unbind(1)
    flush = (suits == suits[:, :1]).all(1)
    ace_high = (held[:, [0, 9, 10, 11, 12]] == 1).all(1)
    runs = (held.unfold(1, CARDS, 1) == 1).all(2).any(1)
    straight = runs | ace_high
    classes = torch.zeros(len(attributes), dtype=torch.int64)
    # Later lines override earlier ones.
    for label, found in (
        (1, most == 2),
        (2, (most == 2) & (second == 2)),
        (3, most == 3),
        (4, straight),
        (5, flush),
        (6, (most == 3) & (second == 2)),
        (7, most == 4),
        (8, straight & flush),
        (9, ace_high & flush),
    ):
        classes = torch.where(found, label, classes)
    return classes


def _malformed(attributes: Tensor, labels: Tensor) -> int | None:
    """The first row that is no hand, if any."""
    if attributes.shape[1] != len(LEVELS):
        return 0
    outside = ((attributes < 0) | (attributes >= torch.tensor(LEVELS))).any(1) | (labels < 0) | (labels >= len(HANDS))
    cards = (attributes[:, 0::2] * RANKS + attributes[:, 1::2]).sort(1).values
    wrong = outside | (cards[:, 1:] == cards[:, :-1]).any(1)
    return int(wrong.nonzero()[0]) if bool(wrong.any()) else None
