"""Hands are classified by the rules and dealt fairly."""

from collections import Counter
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from holonom.data import classify_poker, deal_poker, poker
from holonom.data.registry import lookup
from holonom.errors import DataError

# How many of the 2,598,960 hands are of each class.
COUNTS = [1_302_540, 1_098_240, 123_552, 54_912, 10_200, 5_108, 3_744, 624, 36, 4]


def by_hand(row: list[int]) -> int:
    """The class of one hand, by sorting and counting."""
    suits, ranks = row[0::2], sorted(row[1::2])
    shape = sorted(Counter(ranks).values(), reverse=True)
    flush = len(set(suits)) == 1
    royal = ranks == [0, 9, 10, 11, 12]
    straight = royal or ranks == list(range(ranks[0], ranks[0] + 5))
    if flush and straight:
        return 9 if royal else 8
    if shape[0] == 4:
        return 7
    if shape == [3, 2]:
        return 6
    if flush or straight:
        return 5 if flush else 4
    return {(3, 1, 1): 3, (2, 2, 1): 2, (2, 1, 1, 1): 1}.get(tuple(shape), 0)


def hand(*cards: str) -> list[int]:
    return [number for card in cards for number in ("shdc".index(card[1]), "A23456789TJQK".index(card[0]))]


EXAMPLES = {
    "2s 4h 9d Jc Ks": 0,
    "2s 4h 9d Jc Jh": 1,
    "2s 2h Jd Jc Kh": 2,
    "2s 2h 2d Jc Kh": 3,
    "As 2h 3d 4c 5h": 4,
    "Ts Jh Qd Kc Ah": 4,
    "Js Qh Kd Ac 2h": 0,  # a straight does not go round the corner
    "2s 4s 9s Js Ks": 5,
    "2s 2h 2d Jc Jh": 6,
    "2s 2h 2d 2c Jh": 7,
    "As 2s 3s 4s 5s": 8,
    "9d Td Jd Qd Kd": 8,
    "Kd Td Ad Jd Qd": 9,
}


@pytest.mark.parametrize(("cards", "label"), EXAMPLES.items())
def test_examples(cards: str, label: int) -> None:
    row = hand(*cards.split())
    assert classify_poker(torch.tensor([row])).tolist() == [label]
    assert by_hand(row) == label


def test_all_hands_of_the_deck_have_the_known_counts() -> None:
    counts = torch.zeros(10, dtype=torch.int64)
    deck = np.fromiter(chain.from_iterable(combinations(range(52), 5)), np.int64).reshape(-1, 5)
    for cards in torch.from_numpy(deck).split(400_000):
        attributes = torch.stack([cards // 13, cards % 13], 2).flatten(1)
        counts += classify_poker(attributes).bincount(minlength=10)
    assert counts.tolist() == COUNTS


def test_dealt_hands_agree_with_counting_by_hand() -> None:
    table = deal_poker(2000, generator=torch.Generator().manual_seed(0))
    assert table.labels.tolist() == [by_hand(row) for row in table.attributes.tolist()]
    assert table.levels == (4, 13) * 5
    assert table.one_hot().shape == (2000, 85)


def test_dealing_is_fair() -> None:
    """Every card is equally likely in every place and no hand holds a card twice; classes come as they should."""
    hands = 200_000
    table = deal_poker(hands, generator=torch.Generator().manual_seed(1))
    cards = table.attributes[:, 0::2] * 13 + table.attributes[:, 1::2]
    assert (cards.sort(1).values.diff(dim=1) > 0).all()
    expected = hands / 52
    for place in cards.unbind(1):
        chi_square = ((place.bincount(minlength=52) - expected) ** 2 / expected).sum()
        assert chi_square < 92  # 51 degrees of freedom: exceeded with probability 4e-4
    probability = torch.tensor(COUNTS[:7]) / sum(COUNTS)
    deviation = table.labels.bincount(minlength=10)[:7] - hands * probability
    assert (deviation.abs() < 4 * (hands * probability * (1 - probability)).sqrt()).all()


def test_dealing_reads_no_global_randomness() -> None:
    state = torch.get_rng_state()
    one, two = (deal_poker(10, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one.attributes, two.attributes)
    assert torch.equal(state, torch.get_rng_state())
    assert deal_poker(0).attributes.shape == (0, 10)


def test_rows_are_parsed_and_bad_ones_refused(tmp_path: Path) -> None:
    file = tmp_path / "uci-poker-hand" / lookup("uci-poker-hand").files[0].name
    file.parent.mkdir()
    good = "1,10,1,11,1,13,1,12,1,1,9"
    file.write_text(f"{good}\r\n4,2,4,3,4,4,4,5,4,6,8\r\n")
    table = poker(tmp_path, verify=False)
    assert table.attributes.tolist() == [hand("Ts", "Js", "Ks", "Qs", "As"), hand("2c", "3c", "4c", "5c", "6c")]
    assert table.labels.tolist() == [9, 8]
    with pytest.raises(DataError, match="is not uci-poker-hand's"):
        poker(tmp_path)
    for bad in ("5,2,4,3,4,4,4,5,4,6,8", "4,2,4,2,4,4,4,5,4,6,8", "4,2,4,3,4,4,4,5,4,14,8", "4,2,4,3,4,4,4,5,4,6,10"):
        file.write_text(f"{good}\n{bad}\n")
        with pytest.raises(DataError, match=f"line 2 is no hand of five different cards and its class: {bad}"):
            poker(tmp_path, verify=False)
    for bad in ("4,2,4,3", "a,b", ""):
        file.write_text(bad)
        with pytest.raises(DataError, match=r"eleven whole numbers|line 1 is no hand|is empty"):
            poker(tmp_path, verify=False)
